"""Faults in what is known of hints, and in the bonus of locality."""

from .fault import Fault

_LOCALITY = "tests/server/test_locality.py"
_REPAIRED = f"{_LOCALITY}::test_near_lanes_and_holders_that_somebody_deleted_are_made_again"
_REPAIRED_ROW = f"{_LOCALITY}::test_hints_that_somebody_wrote_into_a_worker_s_row_are_made_again"
_DELETED_LANE = f"{_LOCALITY}::test_a_near_head_whose_lane_somebody_deleted_is_no_job"
_TEN = f"{_LOCALITY}::test_a_worker_holds_the_ten_hints_of_the_jobs_that_it_ended_well_last"
_FREE = f"{_LOCALITY}::test_a_free_slot_goes_to_the_job_whose_hint_its_worker_holds"
_OLDER = f"{_LOCALITY}::test_a_job_that_is_older_by_as_much_as_the_bonus_is_worth_goes_first_all_the_same"
_PART = f"{_LOCALITY}::test_a_bonus_may_be_worth_a_part_of_a_point"
_OLDEST_HINT = f"{_LOCALITY}::test_of_two_near_jobs_of_a_lane_the_older_one_goes_first_whatever_their_hints"
_SEVERAL = f"{_LOCALITY}::test_near_jobs_of_several_lanes_go_by_their_points"
_SPOILED = f"{_LOCALITY}::test_a_near_head_with_a_time_that_is_none_is_passed_over"
_ONE_TIME = f"{_LOCALITY}::test_of_two_near_jobs_that_came_at_one_time_the_one_with_the_smaller_id_goes_first"
_BY_AGE = f"{_LOCALITY}::test_a_claim_that_goes_by_age_alone_knows_no_bonus"
_OWN = f"{_LOCALITY}::test_each_worker_gets_the_jobs_of_its_own_hints"
_ORDER = f"{_LOCALITY}::test_jobs_of_many_near_lanes_go_in_the_order_of_the_reference"
_DELETED_ROW = f"{_LOCALITY}::test_a_near_job_whose_row_somebody_deleted_leaves_the_heads_of_its_type"
_CAP = f"{_LOCALITY}::test_a_near_job_that_reaches_the_cap_of_its_age_goes_by_its_points_of_then"
_SO_MANY = f"{_LOCALITY}::test_a_call_compares_so_many_heads_anew_and_the_next_ones_the_others"
_TOO_LONG = f"{_LOCALITY}::test_a_near_job_of_a_type_that_takes_too_long_is_not_taken_ahead"
_RESERVE = f"{_LOCALITY}::test_a_near_job_that_a_reserve_keeps_back_is_not_taken_ahead"
_NEW = f"{_LOCALITY}::test_the_next_job_goes_by_the_hint_that_its_release_recorded"
_MISSED = f"{_LOCALITY}::test_among_idle_workers_the_one_that_holds_the_hint_is_never_missed"
_MANY = f"{_LOCALITY}::test_of_many_holders_one_is_never_missed"
_ONE_LOOK = f"{_LOCALITY}::test_a_release_looks_for_no_rules_of_types_where_there_is_a_bonus_alone"

FAULTS = (
    Fault("locality/locality", '            redis.call("ZREM", key.holders(oldest), worker)\n', "", _TEN),
    Fault("locality/locality", "say_hints(worker, locality.words(hints))", "say_hints(worker, hint)"),
    Fault("locality/locality", "    table.sort(hints)\n", ""),
    Fault("locality/locality", "> protocol.MOST_HINTS then", "> protocol.MOST_HINTS + 1 then", _TEN),
    Fault("locality/locality", 'is_new and "locality_misses" or', "is_new and"),
    Fault("locality/locality", '        redis.call("ZREM", key.holders(hint), worker)\n', ""),
    Fault("locality/locality", '    redis.call("UNLINK", key.hints(worker))\n', ""),
    Fault("locality/locality", "most + math.floor(near.bonus * MICRO)", "most", _FREE),
    Fault("locality/locality", "math.floor(near.bonus * MICRO)", "math.floor(near.bonus) * MICRO", _PART),
    Fault("locality/locality", "    if lead < 0 or (lead == 0\n", "    if (lead == 0\n", _OLDER),
    Fault("locality/locality", "        return job\n    end\n    other.place", "    end\n    other.place", _OLDER),
    Fault("locality/locality", "or other.id == job.id then", "then", _DELETED_ROW),
    Fault(
        "locality/locality",
        "call.near.heads[type], call.near.best[type] = nil, nil",
        "call.near.best[type] = nil",
        _ORDER,
    ),
    Fault(
        "locality/locality",
        "call.near.heads[type], call.near.best[type] = nil, nil",
        "call.near.heads[type] = nil",
        _ORDER,
    ),
    Fault("placing/best_heads", "found = bytes >= 0 and best_heads", "found = best_heads", _SO_MANY),
    Fault("locality/locality", "    if fields.hints ~= hints then\n", "    if not fields.hints then\n", _OWN),
    Fault(
        "locality/locality",
        "waiting.heads[type] and near.view:any_free(type) then",
        "waiting.heads[type] then",
        _TOO_LONG,
    ),
    Fault(
        "locality/locality",
        "            if found and #types > 1 and (not best",
        "            if false and (not best",
        _ORDER,
    ),
    Fault("locality/locality", "points + near.settings.most_rarity >= most", "points >= most", _ORDER),
    Fault(
        "locality/locality",
        "if found and (not best or points > most",
        "if found and (not best or points < most",
        _ORDER,
    ),
    Fault("locality/locality", "return points + which_job.rarity(near, nth)", "return points", _ORDER),
    Fault("locality/locality", "if other.lane ~= job.lane or", "if false and other.lane ~= job.lane or", _SEVERAL),
    Fault("placing/best_heads", "            if points > most -- not", "            if points < most -- not", _ORDER),
    Fault(
        "placing/best_heads",
        "or (first and points == most and best_heads.is_older(heads, place, all[first], first_place)) then",
        "then",
        _ONE_TIME,
    ),
    Fault("placing/best_heads", "            if found.fast ~= NONE then\n", "            if false then\n", _ORDER),
    Fault("placing/best_heads", "or found.made_us > now_us or now_us > found.until_us) then", ") then", _CAP),
    Fault("placing/best_heads", "()(%l+%.%d+) (%d+) (%S+)", "()(%S+) (%S+) (%S+)", _SPOILED),
    Fault("placing/free_slots", "    call.has_new_hints = true\n", "", _NEW),
    Fault("placing/free_slots", "others and others .. words or", "others or"),
    Fault("placing/candidates", "job.lane), job.id) == 1", "job.lane), job.id) ~= 2", _DELETED_LANE),
    Fault("placing/candidates", "        if not preferred then\n", "        if true then\n", _ONE_LOOK),
    Fault("types/type_rules", "number == 1 and preferred or", "preferred or"),
    Fault("types/type_rules", "key.type_rules) < 2", "key.type_rules) < 1"),
    Fault("types/type_rules", "== 1 or name == placement.FIELD, false)", "== 1, false)"),
    Fault("jobs/claims", "        known.rules = row[5]\n", ""),
    Fault("placing/candidates", "        hooks.leaves_lane(job.id, type, job.lane, job)\n", ""),
    Fault("placing/fill", "candidates.pop(waiting, job, is_marked)", "candidates.pop(waiting, job, is_ruled)"),
    Fault("jobs/hooks", "        hooks.enters_lane(id, type, lane, enqueued)\n        lanes.add", "        lanes.add"),
    Fault("jobs/enter", "            hooks.enters_lane(id, type, lane, due)\n", ""),
    Fault("jobs/enter", "            hooks.enters_lane(alone.id, alone.type, alone.lane, alone.enqueued)\n", ""),
    Fault("placing/candidates", "preferred and not kept_back and hooks", "preferred and hooks", _RESERVE),
    Fault("placing/candidates", "call.near and not goes_by_age then", "call.near then", _BY_AGE),
    Fault("placing/placement", 'values[3] ~= "share" and', ""),
    Fault("placing/placement", "(are_hits[worker] and weights.locality or 0)", "0", _MISSED),
    Fault(
        "placing/placement",
        "found[worker] = number + 1, true, idle_since[worker]",
        "found[worker] = number + 1, true, found[worker]",
        _MISSED,
    ),
    Fault("keyed/key_steps", "    hooks.leaves_lane(id, type, lane)\n", ""),
    Fault("keyed/key_steps", "    hooks.enters_lane(wanted, type, lane, enqueued)\n", ""),
    Fault("arrows/purge", "            hooks.leaves_lane(id, type, lane)\n", ""),
    Fault("fleet/workers", "        hooks.worker_goes(worker)\n", ""),
    Fault(
        "repair/repair_locality", 'derived.one("zset", key.near_lane(hint, type, lane), id, time)', "false", _REPAIRED
    ),
    Fault(
        "repair/repair_locality", "return fix_heads(field, hint, type, lane) or differs", "return differs", _REPAIRED
    ),
    Fault("repair/repair_locality", "#hints > 0 and locality.words(hints)", "#hints > 0 and 1", _REPAIRED_ROW),
    Fault(
        "repair/repair_locality",
        "derived.any_or(derived.score(key.hints(worker), hint))",
        "derived.any_or()",
        _REPAIRED,
    ),
)
