"""Faults in what becomes of batches: of their runs, of their ends, and of calls that go."""

from .fault import Fault

_PART = "tests/server/test_part.py::"
_SPOILED = "tests/server/test_spoiled_batches.py::"
_FAILED = (
    "tests/server/test_merging.py::"
    "test_a_run_that_failed_for_good_is_one_dead_letter_that_runs_again_with_all_its_calls"
)
_LARGE = "tests/server/test_large_batches.py::"
_LARGE_PURGE = _LARGE + "test_a_batch_that_is_purged_goes_with_some_calls_and_the_others_follow_untold"
_LARGE_DROP = _LARGE + "test_a_dead_batch_whose_callers_know_is_dropped_in_parts_and_runs_no_more"
_LARGE_REPLAY = _LARGE + "test_a_dead_batch_that_is_replayed_waits_again_in_parts_with_all_its_calls"
_A_PAGE = "tests/server/test_large_batches.py::test_a_page_of_callers_has_some_mb_of_messages_at_most"
_MERGING = "tests/server/test_merging.py::"
_IN_PAGES = "test_the_calls_are_read_in_pages_and_told_one_by_one"

FAULTS = (
    # A batch is claimed.
    Fault(
        "merging/batch_hooks",
        "math.huge) <= call.now_us",
        "math.huge) < call.now_us",
        "tests/server/test_merging.py"
        "::test_a_call_that_has_expired_is_not_run_and_one_that_expires_during_the_run_gets_its_result",
    ),
    Fault(
        "merging/batch_hooks",
        "nth > protocol.MOST_MOVES then",
        "false then",
        "tests/server/test_merging.py::test_very_many_calls_that_have_expired_end_some_at_a_time",
    ),
    Fault(
        "merging/batch_hooks",
        '"task", task or "")\n                return id, expires',
        '"task", "")\n                return id, expires',
    ),
    Fault("merging/batch_hooks", '        ends.record(id, "expired")\n', ""),
    Fault("placing/fill", "run_expires or expires,", "expires,"),
    Fault("merging/batch_hooks", "    callers.vanish(batch)\n    return nil", "    return nil"),
    Fault(
        "merging/batch_hooks",
        'return run, run and redis.call("HGET", key.job(run), "expires")',
        "return run",
        _MERGING + "test_a_batch_whose_call_may_expire_is_taken_from_an_inbox_that_nobody_reads",
    ),
    # The run ends, or comes back.
    Fault("merging/batches", 'how == "revoked" or how', "how"),
    Fault("merging/batches", "    callers.close(batch, type, known.rules, known.name)\n", ""),
    Fault("merging/batches", '"primary", "acked")', '"primary")'),
    Fault("merging/batches", "its_why, has_others)", "its_why)"),
    Fault(
        "merging/batches",
        '    if has_others then\n        redis.call("ZADD", key.untold, call.now, batch)\n',
        "    if has_others then\n",
    ),
    Fault("merging/batches", 'ends.STATE_AFTER[how] and why or ""', '""'),
    Fault("arrows/release", " and not (known.is_marked and hooks.by_mark[marks.of(id)]) then", " then"),
    Fault("merging/batches", "local ended = primary and ends.meanwhile(primary)", "local ended = false"),
    Fault("merging/batches", '    callers.vanish(batch)\n    return "gone"', '    return "gone"'),
    Fault("merging/batch_hooks", '    redis.call("HSET", key.job(id), "task", "")\n', ""),
    # A batch is dead, or its end is told.
    Fault("merging/batches", "local number = is_told and primary", "local number = primary"),
    Fault("merging/batches", ' or reason == "failed"\n', "\n", _FAILED),
    Fault("arrows/release", "known.acked) and not is_kept\n", "known.acked)\n", _FAILED),
    Fault("merging/batches", '        redis.call("ZREM", key.callers(batch), primary)\n', ""),
    Fault(
        "merging/batches",
        '        redis.call("ZADD", key.untold, call.now, batch)\n    end\n    return true\nend',
        "    end\n    return true\nend",
    ),
    Fault("merging/batches", "find_by.fade(id, stamps, expires)", "type(id, stamps, expires)"),
    Fault("merging/batches", 'claimed == "" and "claimed" or "expires"', '"expires"'),
    Fault("merging/batches", 'redis.call("ZADD", key.callers(batch), told[nth + 1], told[nth])', ""),
    Fault("merging/batches", "    ends.told(id)\n", ""),
    Fault("merging/batches", 'return state == "claimed" and own_fence', "return own_fence"),
    Fault("merging/batches", "and own_fence == fence", ""),
    Fault("arrows/announce", 'hooks.of(id).STANDS_FOR_CALLS and "shared" or', ""),
    Fault("arrows/told", "and not is_half_told then", "then"),
    # Some calls go.
    Fault("arrows/part", "not seen[id] and", "", _PART + "test_a_call_that_is_named_twice_goes_once"),
    Fault("arrows/part", "and id ~= primary and", "and", _PART + "test_a_repeated_call_changes_nothing"),
    Fault(
        "arrows/part",
        'and redis.call("ZSCORE", key.callers(batch), id) then',
        "then",
        _PART + "test_a_call_that_has_ended_meanwhile_keeps_no_other_from_going",
    ),
    Fault(
        "arrows/part",
        "merging.better_lane(lane or its_lane, its_lane)",
        "its_lane",
        _PART + "test_what_goes_is_as_urgent_as_the_most_urgent_of_its_calls",
    ),
    Fault(
        "arrows/part",
        "math.min(enqueued or math.huge, tonumber(its_enqueued)",
        "(tonumber(its_enqueued)",
        _PART + "test_what_goes_is_as_old_as_its_oldest_call_and_goes_before_what_came_later",
    ),
    Fault(
        "arrows/part",
        '        redis.call("ZREM", key.callers(batch), id)\n',
        "",
        _PART + "test_calls_of_a_run_that_comes_back_are_not_those_that_went",
    ),
    Fault(
        "arrows/part",
        '        redis.call("HSET", key.job(id), "into", part)\n',
        "",
        _PART + "test_all_calls_that_go_expire_and_leave_nothing",
    ),
    Fault(
        "arrows/part",
        "not batches.is_its_own(batch, fence) then",
        "false then",
        _PART + "test_who_holds_the_batch_no_more_sends_nothing_back",
    ),
    Fault("arrows/part", "#ids > 0 and -1 or 0", "-1", _PART + "test_a_repeated_call_changes_nothing"),
    Fault(
        "arrows/part",
        "merging.open_if_none_is(part, type, rules, name)",
        "",
        _PART + "test_newcomers_join_what_goes_unless_something_else_is_open",
    ),
    Fault(
        "arrows/part",
        'fill.fill({ type }, "", settings_in_force.read(), which_slot.view())[1]',
        '""',
        _PART + "test_the_calls_that_go_are_a_run_of_their_own_in_their_order",
    ),
    Fault("merging/merging", "if field and not merging.find(field) then", "if field then"),
    Fault("arrows/callers", "if id ~= primary then", "if true then", _MERGING + _IN_PAGES),
    Fault("arrows/callers", '"(" .. after', "after"),
    Fault("arrows/callers", "if bytes > protocol.MOST_BYTES then", "if false then", _A_PAGE),
    Fault("arrows/callers", "#page == 2 * tonumber(most) and tonumber(page[#page]) or -1", "-1"),
    Fault("arrows/shared", "id ~= primary and", ""),
    Fault("arrows/shared", 'number and batch_state == "dead" then', "false then"),
    Fault(
        "arrows/shared",
        "id, batch, ends.STATE_AFTER[how], why)",
        'id, batch, ends.STATE_AFTER[how], "")',
        _MERGING + _IN_PAGES,
    ),
    Fault("arrows/shared", "    return left - 1\n", "    return left\n"),
    Fault("arrows/shared", "    come_back.told(batch)\n", ""),
    Fault("arrows/replay", "rule.wait_again(id, calls_left)", "true, 0"),
    # A batch is large.
    Fault("merging/batches", '            redis.call("UNLINK", key.job(id), key.message(id))\n', "", _LARGE_PURGE),
    Fault("merging/batches", '        redis.call("ZREMRANGEBYRANK", its_calls, 0, #ids - 1)\n', "", _LARGE_PURGE),
    Fault(
        "merging/batches",
        'redis.call("RENAME", key.callers(batch), key.told_callers(batch)) -- nobody is to be told',
        "type(batch)",
        _LARGE_PURGE,
    ),
    Fault("merging/batches", '"reason", "deleted", "ended"', '"reason", "rejected", "ended"', _LARGE_PURGE),
    Fault("jobs/come_back", "id, most or protocol.MOST_FORGOTTEN", "id, 1000000", _LARGE_PURGE),
    Fault(
        "merging/batch_hooks",
        "calls * protocol.KEYED_COUNTS_AS + merging",
        "merging",
        _LARGE + "test_many_batches_are_purged_some_in_a_call",
    ),
    Fault(
        "arrows/purge",
        "marks.has_key(id) and protocol.KEYED_COUNTS_AS or 1",
        "1",
        _LARGE + "test_many_jobs_with_keys_are_purged_some_in_a_call",
    ),
    Fault(
        "merging/call_hooks",
        "return texts.number_of_words(recurring.names_of(type, its_rules, name))",
        "return 0",
        _LARGE + "test_calls_that_put_many_recurring_calls_off_are_purged_some_in_a_call",
    ),
    Fault(
        "arrows/drop",
        'is_dead and hooks.of(id).STANDS_FOR_CALLS and redis.call("ZSCORE", key.untold, id)',
        "false",
        _LARGE + "test_a_dead_batch_that_is_dropped_goes_when_its_callers_know",
    ),
    Fault("arrows/drop", 'and reason ~= "deleted"', "", _LARGE_DROP),
    Fault(
        "arrows/drop",
        "and not is_seen[id]",
        "",
        _LARGE + "test_a_dead_batch_that_is_dropped_goes_when_its_callers_know",
    ),
    Fault("arrows/replay", 'and reason ~= "deleted" ', "", _LARGE_DROP),
    Fault("arrows/told", "math.floor(protocol.MOST_SHARED / math.max(1, #ARGV - 2))", "1000000", _LARGE_DROP),
    Fault("merging/batches", "if #ids == 2 * left then", "if false then", _LARGE_REPLAY),
    Fault("merging/batches", '        redis.call("HSET", key.job(batch), "replayed", after)\n', "", _LARGE_REPLAY),
    Fault("arrows/replay", "left = #ARGV - nth + 1", "left = 0", _LARGE_REPLAY),
    # The row of a batch is lost.
    Fault(
        "jobs/come_back",
        '        redis.call("HSET", key.job(id), "state", "pending")\n        hooks.wait(id, its_type',
        "        hooks.wait(id, its_type",
        _SPOILED + "test_calls_of_a_batch_that_came_back_are_revoked_one_by_one",
    ),
    Fault(
        "placing/fill",
        'redis.call("HMGET", key.job(run), "task"',
        'redis.call("HMGET", key.job(id), "task"',
        _SPOILED + "test_a_claim_makes_the_row_again_of_what_the_calls_say",
    ),
    Fault(
        "merging/batches",
        "if not known.type and batches.make_again(batch) then",
        "if false then",
        _SPOILED + "test_calls_of_a_run_that_has_ended_are_to_be_told",
    ),
    Fault(
        "merging/batches",
        "        batches.make_again(batch)\n",
        "",
        _SPOILED + "test_calls_of_a_run_that_has_ended_are_to_be_told",
    ),
    Fault(
        "arrows/told",
        "hooks.of(id).make_again(id)",
        "false",
        _SPOILED + "test_calls_of_a_batch_whose_end_is_to_be_told_are_told",
    ),
    Fault(
        "repair/repair_workers", "    repair_jobs.fix_batch(id)\n", "", _SPOILED + "test_a_claim_of_a_batch_is_mended"
    ),
    Fault(
        "repair/repair_types",
        "        if repair_jobs.fix_batch(id) then",
        "        if false then",
        _SPOILED + "test_a_batch_with_a_key_waits_again",
    ),
    Fault(
        "repair/repair_jobs",
        "        fix_call(id)\n",
        "",
        _SPOILED + "test_calls_of_whose_batch_nothing_is_left_wait_by_themselves_once_they_are_named",
    ),
)
