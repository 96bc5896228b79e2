"""Faults in the repair of spoiled keys."""

from .fault import Fault

_MANY_TYPES = "tests/server/test_costs.py::test_repair_goes_through_very_many_types_some_at_a_time"
_SPOILED = "tests/server/test_spoiled.py::"
_SAYS_ONLY = _SPOILED + "test_a_repair_that_only_says_what_is_wrong_changes_nothing[valkey-held]"
_GOES_ON = _SPOILED + "test_whatever_is_spoiled_the_rest_goes_on"
_IS_TOLD = _SPOILED + "test_what_is_found_is_told_counted_and_kept_for_a_while"
_BATCHES = "tests/server/test_spoiled_batches.py::"
_OF_A_KEY = "tests/server/test_spoiled_keys.py::test_jobs_of_a_key_run_one_after_the_other_all_the_same"
_RECURRING = "tests/server/test_recurring.py::"
_CALLS_OF_KEYS = "tests/server/test_waiting_calls.py::test_calls_whose_key_is_held_are_counted_again_too"

FAULTS = (
    Fault(
        "repair/lanes",
        "        if call.looks >= repair_keyed_jobs.MOST_LOOKS then",
        "        if false then",
        _MANY_TYPES,
    ),
    Fault("repair/sums", "left > 0 or nil", "true"),
    Fault("repair/made_again", 'not (may_lack and value == "0" and not found[field])', "true"),
    Fault(
        "placing/lanes",
        "priority = 0, protocol.MAX_PRIORITY",
        "priority = 1, protocol.MAX_PRIORITY",
        _CALLS_OF_KEYS,
    ),
    # What is found is told.
    Fault("arrows/repair", '    redis.call("UNLINK", key.spoiled)\n', "", _OF_A_KEY + "[valkey-held]"),
    Fault("repair/sound", 'redis.call("EXPIRE", aside, protocol.SET_ASIDE_KEPT_S)', "", _IS_TOLD),
    Fault("repair/says_only", "        return 0\n", "        return server.call(command, name, ...)\n", _SAYS_ONLY),
    # What is found is mended.
    Fault("repair/keyed_jobs", 'redis.call("ZADD", key.held(row.key), fence, id)', "", _OF_A_KEY + "[valkey-held]"),
    Fault(
        "repair/keyed_jobs",
        '        redis.call("ZADD", sublane, row.enqueued, id)\n',
        "",
        _OF_A_KEY + "[valkey-sublane]",
    ),
    Fault(
        "repair/keyed_jobs",
        'redis.call("HSET", key.of_key(its_key), name, text)',
        "",
        _OF_A_KEY + "[valkey-of_key]",
    ),
    Fault(
        "repair/keyed_jobs",
        'redis.call("ZADD", key.waiting_keys, "NX", keyed.revision(), its_key) == 1',
        "false",
        _OF_A_KEY + "[valkey-waiting_keys]",
    ),
    Fault(
        "repair/keyed_jobs",
        'redis.call("HSETNX", key.kept_lanes, name, 1) == 1',
        "false",
        _OF_A_KEY + "[valkey-kept_lanes]",
    ),
    Fault("repair/agreement", "return in_all == 0", "return true", _GOES_ON + "[valkey-capacity]"),
    Fault("repair/rows", "        sound.set_aside(key.worker(worker))\n", "", _GOES_ON + "[valkey-worker]"),
    Fault(
        "repair/workers",
        "claims_seen = claims_seen + repair_claims.fix(worker, thorough)",
        "",
        _BATCHES + "test_a_claim_of_a_batch_is_mended",
    ),
    Fault(
        "repair/named",
        "            repair_jobs.fix_job(name)\n",
        "",
        _BATCHES + "test_calls_of_whose_batch_nothing_is_left_wait_by_themselves_once_they_are_named",
    ),
    Fault(
        "repair/recurring",
        "recurring.set_due(name, is_time and tonumber(due) or call.now_us + tonumber(stale), is_suspended)",
        "",
        _RECURRING + "test_what_was_lost_is_made_again",
    ),
    Fault(
        "repair/recurring",
        " and recurring.add_name(place, name) then",
        " then",
        _RECURRING + "test_what_was_lost_is_made_again",
    ),
    Fault(
        "repair/recurring",
        "recurring.remove_name(place, name)",
        "",
        _RECURRING + "test_rows_that_are_spoiled_are_left_out",
    ),
)
