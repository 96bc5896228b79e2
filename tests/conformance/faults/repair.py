"""Faults in the repair of spoiled keys."""

from .fault import Fault

_MANY_TYPES = "tests/server/test_costs.py::test_repair_goes_through_very_many_types_some_at_a_time"
_SPOILED = "tests/server/test_spoiled.py::"
_SAYS_ONLY = _SPOILED + "test_a_repair_that_only_reports_damage_changes_nothing[valkey-deleted]"
_WORKERS = "tests/server/test_spoiled_workers.py::"
_TYPES = "tests/server/test_spoiled_types.py::"
_WORKER_GONE = _SPOILED + "test_the_rest_goes_on_when_kinds_of_keys_are_damaged[valkey-all overwritten]"
_OWN_KEYS = _SPOILED + "test_the_rest_goes_on_when_keys_of_the_repair_are_damaged_too[valkey]"
_MEMBERS = "tests/server/test_spoiled_members.py::"
_NO_ID = _MEMBERS + "test_lane_removes_each_member_that_is_not_an_id[valkey]"
_STALE_HEAD = _MEMBERS + "test_head_of_a_running_job_starts_nothing[valkey]"
_GHOST = _MEMBERS + "test_id_without_a_job_does_not_become_a_dead_letter[valkey]"
_NO_CALL = _MEMBERS + "test_batch_does_not_run_a_member_that_is_not_a_call[valkey]"
_IS_TOLD = _SPOILED + "test_what_is_found_is_told_counted_and_kept_for_a_while"
_BATCHES = "tests/server/test_spoiled_batches.py::"
_OF_A_KEY = "tests/server/test_spoiled_keys.py::test_jobs_of_a_key_run_one_after_the_other_all_the_same"
_RECURRING = "tests/server/test_recurring.py::"
_CALLS_OF_KEYS = "tests/server/test_waiting_calls.py::test_calls_whose_key_is_held_are_counted_again_too"

FAULTS = (
    # A call ends in time, and the next one goes on.
    Fault(
        "arrows/repair",
        "        if derived.looks >= MOST_LOOKS then\n            return page",
        "        if false then\n            return page",
        _MANY_TYPES,
    ),
    # What is right is left alone.
    Fault(
        "repair/repair_workers",
        "key.free(profile), worker, left > 0 and derived.any_time }",
        "key.free(profile), worker, derived.any_time }",
    ),
    Fault(
        "repair/repair_workers",
        "(name == key.capacity or name == key.free_slots and not found)",
        "name == key.capacity",
    ),
    Fault(
        "repair/repair_workers",
        "if not call.found then\n        settings_in_force.renew_for_claims()",
        "if false then\n        settings_in_force.renew_for_claims()",
        "tests/server/test_placing.py::test_slots_that_were_overwritten_count_no_more_after_a_repair",
    ),
    Fault("repair/derived", 'type(should) == "number" and string.format("%.0f", should) or should', "should"),
    Fault("repair/repair_keyed", "id, is_kept and row.enqueued }", "id, row.enqueued }"),
    Fault(
        "repair/repair_types",
        "local names, places, fields = lanes.NAMES, {}, {}",
        "local names, places, fields = { unpack(lanes.NAMES, 2) }, {}, {}",
        _CALLS_OF_KEYS,
    ),
    # What is found is told.
    Fault("jobs/spoiled", '        redis.call("UNLINK", key.spoiled)\n', "", _OF_A_KEY + "[valkey-held]"),
    Fault("jobs/spoiled", 'redis.call("EXPIRE", aside, protocol.SET_ASIDE_KEPT_S)', "", _IS_TOLD),
    Fault("jobs/spoiled", "and spoiled.is_ready() then", "and false then", _OWN_KEYS),
    # What is damaged reaches no joined text, and is handed out once.
    Fault("placing/lanes", 'and string.find(id, "^%S+$"))', ")", _NO_ID),
    Fault("jobs/spoiled", "            if not spoiled.is_word(id) then", "            if false then", _NO_ID),
    Fault("placing/candidates", "return was_there or waits_elsewhere(job)", "return true", _STALE_HEAD),
    Fault("jobs/claims", "new_fields > 3 and is_nothing(id)", "false", _GHOST),
    Fault("merging/batch_hooks", "if task or not callers.is_nothing(id, batch) then", "if true then", _NO_CALL),
    Fault(
        "repair/derived",
        "        return false\n    end\n    spoiled",
        "        return true\n    end\n    spoiled",
        _SAYS_ONLY,
    ),
    # What is found is mended.
    Fault(
        "repair/repair_keyed",
        'entries[#entries + 1] = { "zset", key.held(stated.key), id, fence }',
        "",
        _OF_A_KEY + "[valkey-held]",
    ),
    Fault(
        "repair/repair_keyed",
        "key.sublane(stated.key, row.type, row.lane), id, waits and row.enqueued }",
        "key.sublane(stated.key, row.type, row.lane), id, row.enqueued and nil }",
        _OF_A_KEY + "[valkey-sublane]",
    ),
    Fault(
        "repair/repair_keyed",
        "differ = fix_written(stated.key, row.type, row.lane, nth <= number and id) or differ",
        "",
        _OF_A_KEY + "[valkey-of_key]",
    ),
    Fault(
        "repair/repair_keyed",
        "derived.any_or(keyed.revision())",
        "derived.any_or()",
        _OF_A_KEY + "[valkey-waiting_keys]",
    ),
    Fault(
        "repair/repair_keyed", 'derived.any_or(is_kept and "1")', "derived.any_or()", _OF_A_KEY + "[valkey-kept_lanes]"
    ),
    Fault(
        "repair/repair_workers",
        "workers_left == 0 and slots_left == 0",
        "workers_left == 0",
        _WORKERS + "test_what_was_deleted_is_counted_again[valkey-capacity]",
    ),
    Fault(
        "arrows/repair",
        '        { fix_fields, "profiles", repair_workers.fix_profile },\n',
        "",
        _WORKERS + "test_what_was_deleted_is_counted_again[valkey-serving]",
    ),
    Fault("repair/repair_workers", "        derived.set_aside(key.worker(worker))\n", "", _WORKER_GONE),
    Fault(
        "repair/repair_workers",
        "        fix_claim(worker, claimed[i], claimed[i + 1])\n",
        "",
        _BATCHES + "test_a_claim_of_a_batch_is_mended",
    ),
    Fault(
        "repair/repair_workers",
        'and { "zset", key.limited(type), id, lanes.number(lane) }',
        "and false",
        _TYPES + "test_claims_that_a_limit_counts_are_found_again",
    ),
    Fault(
        "repair/repair_workers",
        "        return call.now_us / 1000",
        "        return found",
        _TYPES + "test_fencing_numbers_grow_whatever_was_written_of_them",
    ),
    Fault(
        "repair/repair_single_keys",
        "return value -- of a newer release",
        "return nil -- of a newer release",
        "tests/server/test_spoiled_settings.py::"
        "test_a_repair_keeps_the_settings_of_a_newer_release_and_none_that_is_no_value",
    ),
    Fault(
        "repair/repair_single_keys",
        'return other and not string.find(other, "%S") and value or nil',
        'return other == "" and value or nil',
        "tests/server/test_settings_survive_repair.py::test_each_value_of_each_setting_survives_a_repair[valkey]",
    ),
    Fault(
        "repair/repair_single_keys",
        "        rule.is_paused = pauses[type]\n",
        "",
        _TYPES + "test_what_holds_back_a_type_is_known_again[valkey-pause]",
    ),
    Fault(
        "repair/repair_single_keys",
        "rule.limit, rule.is_full, rule.is_being_counted = limit_of[type], false, limit_of[type] ~= nil",
        "",
        _TYPES + "test_what_holds_back_a_type_is_known_again[valkey-limit]",
    ),
    Fault(
        "repair/repair_jobs",
        "            repair_jobs.fix(name)\n",
        "",
        _BATCHES + "test_calls_of_whose_batch_nothing_is_left_wait_by_themselves_once_they_are_named",
    ),
    Fault(
        "repair/repair_recurring",
        'return is_suspended and "inf" or is_good and found or its_due',
        "return found",
        _RECURRING + "test_what_was_lost_is_made_again",
    ),
    Fault(
        "repair/repair_recurring",
        "words[#words + 1] = not is_there and #words < protocol.MOST_ALIKE and name or nil",
        "",
        _RECURRING + "test_what_was_lost_is_made_again",
    ),
    Fault(
        "repair/repair_recurring",
        "left[#left + 1] = repair_recurring.fix(name) == place and name or nil",
        "left[#left + 1] = name",
        _RECURRING + "test_rows_that_are_spoiled_are_left_out",
    ),
)
