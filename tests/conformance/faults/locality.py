"""Faults in what is known of hints, and in the bonus of locality."""

from .fault import Fault

_LOCALITY = "tests/server/test_locality.py"
_REPAIRED = f"{_LOCALITY}::test_near_lanes_and_holders_that_somebody_deleted_are_made_again"
_REPAIRED_ROW = f"{_LOCALITY}::test_hints_that_somebody_wrote_into_a_worker_s_row_are_made_again"
_DELETED_LANE = f"{_LOCALITY}::test_a_near_head_whose_lane_somebody_deleted_is_no_job"
_ONE_LOOK = f"{_LOCALITY}::test_a_release_looks_for_no_rules_of_types_where_there_is_a_bonus_alone"

FAULTS = (
    Fault("placing/near", '            redis.call("ZREM", key.holders(oldest), worker)\n', ""),
    Fault("placing/near", '"hints", near.words(hints))', '"hints", hint)'),
    Fault("placing/near", "    table.sort(hints)\n", ""),
    Fault("placing/near", "> protocol.MOST_HINTS then", "> protocol.MOST_HINTS + 1 then"),
    Fault("placing/near", 'is_new and "locality_misses" or', "is_new and"),
    Fault("placing/near", '        redis.call("ZREM", key.holders(hint), worker)\n', ""),
    Fault("placing/near", '    redis.call("UNLINK", key.hints(worker))\n', ""),
    Fault("placing/near", "most = most + math.floor(waiting.bonus * 1000000)", "most = most + 0"),
    Fault("placing/near", "math.floor(waiting.bonus * 1000000)", "math.floor(waiting.bonus) * 1000000"),
    Fault("placing/near", "    if #jobs == 0 then\n", "    if true then\n"),
    Fault("placing/near", "if is_near(waiting, job, all) then", "if is_near(waiting, job, all) or all then"),
    Fault("placing/near", "hint = waiting.hints[nth], heads = heads }", "hint = waiting.hints[1], heads = heads }"),
    Fault("placing/near", "local points = points_of(waiting, job, settings)\n    most", "local points = 0\n    most"),
    Fault("placing/near", "if not best or points > most or", "if not best or points < most or"),
    Fault("placing/candidates", "job.lane), job.id) == 1", "job.lane), job.id) ~= 2", _DELETED_LANE),
    Fault("placing/candidates", "        if not preferred then\n", "        if true then\n", _ONE_LOOK),
    Fault("types/type_rules", "number == 1 and preferred or", "preferred or"),
    Fault("types/type_rules", "key.type_rules) < 2", "key.type_rules) < 1"),
    Fault("types/type_rules", "== 1 or name == placement.FIELD, false)", "== 1, false)"),
    Fault("jobs/claims", "        known.rules = row[5]\n", ""),
    Fault("placing/candidates", "        hooks.leaves_lane(job.id, type, job.lane, job.near)\n", ""),
    Fault("placing/fill", "candidates.pop(waiting, job, is_marked)", "candidates.pop(waiting, job, is_ruled)"),
    Fault("jobs/hooks", "        hooks.enters_lane(id, type, lane, enqueued)\n        lanes.add", "        lanes.add"),
    Fault("jobs/enter", "            hooks.enters_lane(id, type, lane, due)\n", ""),
    Fault("jobs/enter", "            hooks.enters_lane(alone.id, alone.type, alone.lane, alone.enqueued)\n", ""),
    Fault("placing/candidates", "if preferred and not kept_back then", "if preferred then"),
    Fault("placing/candidates", "waiting.hints and not goes_by_age then", "waiting.hints then"),
    Fault("placing/placement", 'values[3] ~= "share" and', ""),
    Fault("placing/placement", "(holders[worker] and weights.locality or 0)", "0"),
    Fault("placing/placement", "    add_holders(found, holders, profiles)\n", ""),
    Fault("keyed/key_steps", "    hooks.leaves_lane(id, type, lane)\n", ""),
    Fault("keyed/key_steps", "    hooks.enters_lane(wanted, type, lane, enqueued)\n", ""),
    Fault("arrows/purge", "            hooks.leaves_lane(id, type, lane)\n", ""),
    Fault("fleet/workers", "        hooks.worker_goes(worker)\n", ""),
    Fault("repair/repair_near", 'derived.one("zset", key.near_lane(hint, type, lane), id, time)', "false", _REPAIRED),
    Fault("repair/repair_near", "return fix_heads(hint, place) or differs", "return differs", _REPAIRED),
    Fault("repair/repair_near", "#words > 0 and near.words(words)", "#words > 0 and 1", _REPAIRED_ROW),
    Fault("repair/repair_near", "return found or hints[i + 1]", "return found", _REPAIRED),
)
