"""Faults in how runs of several calls, and calls that wait, are counted."""

from .fault import Fault

_COUNTS = "tests/server/test_waiting_calls.py::"
_RUN_AND_COME_BACK = _COUNTS + "test_calls_are_not_counted_once_they_run_and_are_again_when_they_come_back"
_RUNS = "tests/server/test_batch_counts.py::"

FAULTS = (
    # Runs are counted.
    Fault(
        "merging/batch_hooks",
        '"size", redis.call("ZCARD", key.callers(batch))',
        '"size", 2',
        _RUNS + "test_a_run_is_counted_once_it_has_ended",
    ),
    Fault(
        "arrows/part",
        'redis.pcall("HINCRBY", key.job(batch), "size", -#ids)\n',
        "",
        _RUNS + "test_calls_that_a_run_leaves_to_another_are_counted_there",
    ),
    Fault(
        "merging/batches",
        '        count(batch, known.type or "")\n',
        "",
        _RUNS + "test_a_run_is_counted_once_it_has_ended",
    ),
    Fault(
        "merging/batches",
        "    if not is_without_result then\n",
        "    if true then\n",
        _RUNS + "test_a_run_whose_calls_have_all_ended_before_it_is_not_counted",
    ),
    Fault(
        "merging/batches",
        "    if calls < 2 then",
        "    if calls < 1 then",
        _RUNS + "test_a_call_that_ran_alone_is_not_counted",
    ),
    Fault(
        "merging/batches",
        "while size < calls and",
        "while size <= calls and",
        _RUNS + "test_a_run_is_counted_once_it_has_ended",
    ),
    Fault(
        "fleet/workers",
        '                redis.call("HDEL", key.batched, type)\n',
        "",
        _RUNS + "test_the_calls_of_a_type_are_forgotten_with_its_last_worker",
    ),
    # The calls that wait are counted.
    Fault("merging/batch_hooks", "    callers.count_waiting(type, callers.beyond_one(id))\n", "", _RUN_AND_COME_BACK),
    Fault(
        "merging/callers",
        "        if tonumber(calls) and calls <= 0 then",
        "        if false then",
        _RUN_AND_COME_BACK,
    ),
    Fault("merging/callers", "key.callers(batch)) - 1", "key.callers(batch))", _RUN_AND_COME_BACK),
    Fault(
        "merging/callers",
        'math.max(0, redis.call("ZCARD"',
        '(redis.call("ZCARD"',
        _COUNTS + "test_calls_that_leave_one_by_one_leave_no_count",
    ),
    Fault(
        "merging/callers",
        'elseif state == "pending" and type then',
        "else",
        _COUNTS + "test_a_call_that_leaves_a_run_was_counted_no_more",
    ),
    Fault("merging/callers", "        callers.count_waiting(type, -1)\n", "", _RUN_AND_COME_BACK),
    Fault(
        "merging/batch_hooks",
        "    callers.count_waiting(type, -callers.beyond_one(id))\n",
        "",
        _COUNTS + "test_calls_that_go_to_another_lane_are_counted_once",
    ),
    Fault(
        "merging/merging",
        "        callers.count_waiting(type, 1)\n",
        "",
        _COUNTS + "test_a_job_of_several_calls_is_several_and_any_other_job_is_one",
    ),
    Fault(
        "merging/batch_hooks", "    callers.count_waiting(type, -callers.beyond_one(batch))\n", "", _RUN_AND_COME_BACK
    ),
    Fault(
        "merging/call_hooks",
        'if state ~= "scheduled" then',
        "if true then",
        "tests/server/test_waiting_calls.py::"
        "test_calls_that_wait_for_more_are_not_counted_so_a_purge_of_them_counts_none_off",
    ),
    Fault(
        "merging/call_hooks", "        callers.count_waiting(type, -callers.beyond_one(id))\n", "", _RUN_AND_COME_BACK
    ),
    Fault(
        "repair/repair_types",
        "    fix_waiting_calls(type, places)\n",
        "",
        _COUNTS + "test_a_repair_counts_the_calls_again",
    ),
    Fault(
        "arrows/repair",
        '        { fix_fields, "waiting_calls", repair_types.fix },\n',
        "",
        _COUNTS + "test_a_count_of_a_type_without_jobs_goes",
    ),
    Fault(
        "repair/repair_types",
        "key.lane(type, lane), key.kept_back(type, lane) }) do",
        "key.lane(type, lane) }) do",
        _COUNTS + "test_calls_whose_key_is_held_are_counted_again_too",
    ),
    Fault(
        "repair/repair_types",
        "    if left < 0 then\n        return\n    end\n",
        "",
        _COUNTS + "test_the_calls_of_very_many_jobs_are_not_counted_again_at_once",
    ),
)
