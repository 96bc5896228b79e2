"""Faults in recurring calls: when they are due, and what puts them off."""

from .fault import Fault

_TESTS = "tests/server/test_recurring.py::"
_PAST = _TESTS + "test_a_call_whose_time_is_past_when_it_changes_is_due_now_and_not_before"
_UNDER_WAY = _TESTS + "test_from_the_end_no_call_is_made_while_its_last_run_is_under_way"
_LEAVES = _TESTS + "test_an_app_leaves_what_it_does_not_know_to_others_for_a_while"
_DUE = "tests/server/test_due.py::"
_NOBODY_KNOWS = (
    "tests/server/test_recurring.py::test_a_merged_run_of_which_nobody_knows_the_call_that_was_run_puts_nothing_off"
)

FAULTS = (
    # What puts a call off, and what does so no more.
    Fault(
        "merging/call_hooks",
        "    if not is_again then\n        recurring.match(type, job.rules",
        "    if true then\n        recurring.match(type, job.rules",
    ),
    Fault("jobs/enter", "    if is_again and rule then", "    if false then"),
    Fault("merging/call_hooks", "job.task_id, job.recurring)", "job.task_id)"),
    Fault("merging/call_hooks", "        recurring.match(type, its_rules, name, task, fired)\n", ""),
    Fault(
        "merging/call_hooks",
        "    if not is_again then\n        recurring.match(type, its_rules",
        "    if true then\n        recurring.match(type, its_rules",
    ),
    Fault("merging/call_hooks", "name, task, fired)", "name, task)"),
    Fault("recurring/recurring", "if its_since == since and tonumber(stale_us) then", "if tonumber(stale_us) then"),
    Fault("recurring/recurring", "(row.name ~= fired and 1 or 0)", "1"),
    Fault("recurring/recurring", "if not is_suspended then", "if true then"),
    Fault(
        "recurring/recurring",
        '(task or "") == "" or redis.call("GET", key.task(task)) == ran',
        "true",
        _TESTS + "test_a_run_that_is_retried_has_not_come_to_its_end",
    ),
    Fault("recurring/recurring", "if due_us < row.due_us then", "if true then"),
    Fault("recurring/recurring", "math.max(call.now_us + 1, (tonumber(enqueued)", "math.max(0, (tonumber(enqueued)"),
    Fault("jobs/rule_texts", '"^merge=(%S+)")', '"^merge=(%S)")'),
    Fault("merging/call_hooks", 'if state == "pending" or state == "claimed" or (state', "if true or (state"),
    Fault(
        "merging/call_hooks",
        'state == "pending" or state == "claimed" or (state',
        'state == "pending" or (state',
        _TESTS + "test_a_job_that_ends_as_it_comes_back_from_its_worker_has_put_nothing_off",
    ),
    Fault(
        "merging/call_hooks",
        'or (state == "scheduled" and (patient or rank)) then',
        "then",
        _TESTS + "test_a_call_that_is_revoked_while_it_waits_alone_for_more_has_put_nothing_off",
    ),
    Fault(
        "merging/call_hooks",
        'if state == "pending" or patient or rank then',
        'if state == "pending" or rank then',
        "tests/server/test_recurring.py::"
        "test_calls_that_end_while_they_wait_for_more_have_put_nothing_off_since_the_first_of_them",
    ),
    Fault(
        "merging/call_hooks",
        "(patient or rank)) then\n        recurring.take_back(type, its_rules, name, enqueued)\n",
        "(patient or rank)) then\n",
        _TESTS + "test_a_job_that_ends_as_it_comes_back_from_its_worker_has_put_nothing_off",
    ),
    Fault(
        "merging/callers",
        "    recurring.take_back(type, rules, name, enqueued)\n",
        "",
        _TESTS + "test_calls_that_end_before_their_run_have_put_off_nothing_since_the_first_of_them",
    ),
    Fault(
        "merging/call_hooks",
        "or patient or rank then\n        recurring.take_back(type, its_rules, name, enqueued)\n",
        "or patient or rank then\n",
    ),
    Fault(
        "merging/call_hooks",
        'state == "done" and not known.is_doubtful',
        'state == "done"',
        _TESTS + "test_a_run_that_was_acked_early_and_lost_puts_nothing_off",
    ),
    Fault("merging/batches", "known.is_doubtful or not primary", "false", _NOBODY_KNOWS),
    Fault(
        "merging/batches",
        "known.ran, known.is_doubtful = primary,",
        "known.ran, known.is_doubtful = nil,",
        _TESTS + "test_a_merged_run_that_has_succeeded_puts_off_what_counts_from_the_end",
    ),
    # The clock is set back.
    Fault("arrows/tick", "        recheck_from = 0\n", "", _TESTS + "test_a_clock_that_is_set_back_delays_no_call"),
    Fault(
        "recurring/recurring",
        "(tonumber(due) or 0) > latest_us",
        "false",
        _TESTS + "test_a_clock_that_is_set_back_delays_no_call",
    ),
    Fault(
        "recurring/recurring",
        "at_us > latest_us and at_us ~= math.huge",
        "at_us > latest_us",
        _TESTS + "test_a_clock_that_is_set_back_delays_no_call",
    ),
    Fault(
        "recurring/recurring",
        "at_us > latest_us and at_us ~= math.huge",
        "false",
        _TESTS + "test_a_clock_that_is_set_back_delays_no_call",
    ),
    # What a tick says.
    Fault("arrows/tick", "recurring_us <= call.now_us", "recurring_us < call.now_us"),
    Fault("arrows/tick", '"(" .. call.now, "+inf"', 'call.now, "+inf"'),
    # Declaring.
    Fault(
        "arrows/recur",
        'if app == "" or redis.call("HGET", key.recurring_of(app), name) ~= digest then',
        "if true then",
        _TESTS + "test_what_changed_last_counts_and_who_said_otherwise_is_told",
    ),
    Fault(
        "arrows/recur",
        "old_digest ~= digest and old_app ~= app",
        "old_app ~= app",
        _TESTS + "test_whoever_says_the_same_replaces_nothing",
    ),
    Fault("arrows/recur", "old_digest ~= digest and old_app ~= app", "old_digest ~= digest"),
    Fault("arrows/recur", "math.max(call.now_us, due_us)", "due_us", _PAST),
    Fault("arrows/recur", "tonumber(due) - tonumber(old_stale) + tonumber(stale)", "call.now_us + tonumber(stale)"),
    Fault(
        "arrows/recur",
        "            if old_stale ~= stale then",
        "            if true then",
        _TESTS + "test_a_call_that_is_being_made_is_handed_out_to_nobody_else_when_its_signature_changes",
    ),
    Fault("arrows/recur", "        recurring.remove_name(old_place, name)\n", ""),
    Fault("arrows/recur", '"matched", "by", "made", "left", "left_at")', '"left", "left_at")'),
    Fault("arrows/recur", '        redis.call("HSET", key.recurring_of(app), name, digest)\n', ""),
    Fault("recurring/recurring", "each ~= name and each or nil", "each"),
    Fault("recurring/recurring", "protocol.MOST_ALIKE then", "math.huge then", _TESTS + "test_as_many_as_match_alike"),
    Fault("arrows/stop", 'if app == "" or its_app == app then', "if true then"),
    Fault("arrows/stop", '        redis.call("UNLINK", key.signature(name))\n', ""),
    Fault("arrows/stop", '        redis.call("ZREM", key.recurring, name)\n', ""),
    Fault("arrows/stop", '        redis.call("HDEL", key.recurring_of(app), name)\n', ""),
    Fault("arrows/suspend", '    redis.call("ZADD", key.recurring, "inf", name)\n', ""),
    Fault("arrows/suspend", "math.max(call.now_us, tonumber(due) or 0)", "tonumber(due)", _PAST),
    Fault("arrows/suspend", "elseif is_suspended then", "else"),
    # A call that is due is handed out, and made.
    Fault(
        "arrows/due", "elseif not texts.has_word(recurring.left_to_others(left, left_at), app) then", "else", _LEAVES
    ),
    Fault("arrows/due", "elseif is_under_way(since, made) then", "elseif false then", _UNDER_WAY),
    Fault(
        "arrows/due", 'since == "end" and made', "made", _TESTS + "test_from_the_publish_a_call_is_made_whatever_runs"
    ),
    Fault(
        "arrows/due",
        'state == "scheduled" or state == "pending"',
        'state == "pending"',
        _DUE + "test_from_the_end_no_call_is_made_while_the_time_of_its_last_job_is_still_to_come",
    ),
    Fault("arrows/due", "protocol.TICK_US", "again_us", _UNDER_WAY),
    Fault(
        "arrows/due",
        "call.text(call.now_us + again_us)",
        "call.now",
        _TESTS + "test_any_number_of_dispatchers_make_one_job_for_one_due",
    ),
    Fault("recurring/recurring", "since_us < protocol.OTHERS_HAVE_US", "true", _LEAVES),
    Fault(
        "arrows/leave_due",
        "recurring.left_to_others(left, left_at)",
        "left or nil",
        _DUE + "test_an_app_that_left_a_call_to_others_long_ago_gets_what_the_others_have_left",
    ),
    Fault(
        "arrows/leave_due",
        "is_suspended or (",
        "(",
        _DUE + "test_a_call_that_is_suspended_and_then_left_to_others_is_due_for_none",
    ),
    Fault(
        "arrows/leave_due",
        "(tonumber(due) or math.huge) > call.now_us",
        "not due",
        _DUE + "test_a_call_that_is_put_off_and_then_left_to_others_is_due_for_none",
    ),
    Fault("arrows/leave_due", 'redis.call("ZADD", key.recurring, call.now, name)', "", _LEAVES),
    Fault(
        "arrows/leave_due",
        'left = left .. " " .. app',
        "left = app",
        _LEAVES,
    ),
    Fault("arrows/fire", '    redis.call("HSET", key.recurring_call(name), "made", job.id)\n', "", _UNDER_WAY),
    Fault(
        "arrows/fire",
        "due ~= its_due or is_suspended",
        "due ~= its_due",
        _TESTS + "test_a_call_that_is_suspended_after_it_was_handed_out_is_not_made",
    ),
    Fault(
        "arrows/fire",
        "due ~= its_due or is_suspended",
        "is_suspended",
        _DUE + "test_what_was_handed_out_for_a_time_at_which_somebody_made_it_is_not_made_for_the_next",
    ),
    Fault(
        "arrows/fire",
        'due ~= "" and (tonumber(its_due) or 0) > call.now_us',
        "false",
        _DUE + "test_what_was_handed_out_before_the_clock_was_set_back_is_not_made_until_it_is_due",
    ),
    Fault("arrows/fire", "job.recurring = name\n", "", _TESTS + "test_firings_and_what_puts_off_are_counted"),
    Fault(
        "arrows/fire",
        "if state ~= protocol.IS_KNOWN then",
        "if true then",
        _DUE + "test_a_job_that_there_is_already_becomes_no_firing",
    ),
    Fault(
        "arrows/fire",
        "if state == protocol.IS_REFUSED then",
        "if false then",
        _DUE + "test_a_firing_that_is_refused_leaves_the_call_due",
    ),
    Fault(
        "arrows/fire",
        "recurring.set_due(name, call.now_us + tonumber(stale_us), is_suspended)\n",
        "",
        _TESTS + "test_a_firing_whose_own_key_is_another_sets_the_next_time_all_the_same",
    ),
)
