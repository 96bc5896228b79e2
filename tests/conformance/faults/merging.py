"""Faults in how calls merge: they join, wait for more, and leave."""

from .fault import Fault

_PLACED = "tests/server/test_merging.py::test_a_publish_places_a_batch_of_its_own_calls_and_needs_no_further_call"
_TESTS = "tests/server/test_merging.py::"
_MANY = _TESTS + "test_a_call_among_many_that_leaves_its_rules_to_the_batch_is_explained_and_told_as_any"
_PART = "tests/server/test_part.py::"
_PATIENT = "tests/server/test_patience.py::"
_WAIT_ANEW = _PATIENT + "test_a_call_waits_for_more_which_wait_anew_and_then_they_run"
_COUNTS = "tests/server/test_waiting_calls.py::"
_SAY_THEIR_RULES = (
    "tests/server/test_large_batches.py::test_the_first_calls_of_a_batch_say_their_rules_and_those_with_a_key_do"
)

FAULTS = (
    # Calls join.
    Fault("merging/callers", "rule_texts.of_keys(rules)", '""'),
    Fault("merging/merging", '(state == "pending" or patient) and (deliveries', "(deliveries"),
    Fault("merging/merging", 'or patient) and (deliveries or "0") == "0"', "or patient)"),
    Fault("merging/merging", "return calls < most and", "return calls <= most and"),
    Fault(
        "merging/merging",
        " and bytes + added <= most_bytes",
        "",
    ),
    Fault(
        "merging/merging", "has_room(row.calls, its_bytes, bytes, rules)", "has_room(row.calls, its_bytes, 0, rules)"
    ),
    Fault("merging/merging", "        hooks.leave(first, type, row.lane) ", "        type(first) "),
    Fault("merging/merging", 'redis.call("HSET", key.merging, row.field, batch)\n    end', "end"),
    Fault(
        "merging/merging", 'redis.call("HSET", key.merging, field, id)', 'redis.call("HSETNX", key.merging, field, id)'
    ),
    Fault("merging/merging", "lanes.is_on_demand(lane) or lanes.is_on_demand(other)", "lanes.is_on_demand(lane)"),
    Fault("merging/merging", "math.max(lanes.priority(lane), lanes.priority(other))", "lanes.priority(lane)"),
    Fault(
        "merging/merging", "tonumber(enqueued) < tonumber(row.enqueued) and enqueued or row.enqueued", "row.enqueued"
    ),
    Fault("merging/merging", "        hooks.leave(batch, type, row.lane)\n", ""),
    Fault("merging/merging", '"calls", calls, "bytes", call.text(row.bytes + bytes)', '"calls", calls'),
    Fault(
        "merging/merging", "local calls = row.calls + 1", 'local calls = 1 + redis.call("ZCARD", key.callers(batch))'
    ),
    Fault("merging/call_hooks", '"bytes", #job.message }', '"bytes", 0 }'),
    Fault("jobs/enter", "and not (is_expired or is_revoked)", "and not is_expired"),
    Fault("jobs/enter", "if rule and delay_us <= 0 and", "if rule and"),
    Fault("merging/call_hooks", "not joined or merging.says_rules(job.id, joined.open.calls + 1)", "not joined"),
    Fault("merging/call_hooks", '{ "into", joined.batch }', "{}"),
    Fault("jobs/enter", 'joined and "merged" or delay_us', "delay_us"),
    Fault(
        "merging/call_hooks",
        'joined and { "into", joined.batch } or',
        'joined and { "into", joined.batch, "bytes", #job.message } or',
    ),
    Fault("merging/call_hooks", "joined.open.calls + 1)", "1)", _MANY),
    Fault("merging/merging", "number <= protocol.MOST_MOVES or", "number < protocol.MOST_MOVES or", _MANY),
    Fault("jobs/enter", 'waits_as == "merged" and protocol.IS_MERGED or protocol.IS_PENDING', "protocol.IS_PENDING"),
    Fault("arrows/publish", "fresh[batch] = fresh[first]", "fresh[batch] = fresh[job.id]", _PLACED),
    Fault("arrows/publish", "fresh[batch] = fresh[first]", "", _PLACED),
    Fault("arrows/tick", "not hooks.of(id).is_due(id, type, lane, enqueued)", "true"),
    Fault("merging/call_hooks", "tonumber(its_bytes) or 0", "0"),
    # Calls wait for more.
    Fault(
        "merging/merging",
        "or marks.has_key(first) then",
        "then",
        _PATIENT + "test_a_key_is_kept_for_no_retry_that_has_merged",
    ),
    Fault(
        "merging/merging",
        "            patience.finish(id, row.patient)\n",
        "",
        _PATIENT + "test_a_run_that_has_no_room_for_the_next_call_waits_for_nothing",
    ),
    Fault(
        "merging/merging",
        "row.patient and not merging.has_room(row.calls + 1,",
        "row.patient and not merging.has_room(0,",
    ),
    Fault(
        "merging/merging",
        "its_bytes + bytes, 1, rules)",
        "its_bytes + bytes, 0, rules)",
        _PATIENT + "test_a_run_whose_messages_fill_it_to_the_last_byte_waits_for_nothing",
    ),
    Fault(
        "merging/merging",
        "if is_changed and not row.patient then",
        "if is_changed then",
        _COUNTS + "test_calls_that_wait_for_others_change_no_count_however_urgent_they_become",
    ),
    Fault(
        "merging/merging",
        "        row.lane, row.enqueued = lane_now, enqueued_now\n",
        "",
        _PATIENT + "test_a_call_on_demand_ends_the_patience_of_the_others",
    ),
    Fault("merging/merging", "return patience.begin(id", "return false and patience.begin(id", _WAIT_ANEW),
    Fault(
        "merging/patience",
        "tonumber(enqueued) + at_most_us",
        "math.huge",
        _PATIENT + "test_no_run_waits_longer_in_all_than_it_may",
    ),
    Fault(
        "merging/patience",
        "workers.tick_in_time(time - call.now_us,",
        "workers.tick_in_time(0,",
        _PATIENT + "test_one_tick_is_asked_for_not_one_for_each_call_on_demand",
    ),
    Fault(
        "merging/patience",
        "        wait(id, protocol.AT_ONCE_US)\n        workers.have_one_tick()\n",
        "        wait(id, protocol.AT_ONCE_US)\n",
    ),
    Fault("fleet/workers", "if in_us < protocol.TICK_US and redis", "if redis"),
    Fault(
        "merging/patience",
        "workers.tick_in_time(time - call.now_us, key.scheduled, id)",
        "",
        _PATIENT + "test_a_tick_is_asked_for_if_the_next_one_came_too_late",
    ),
    Fault(
        "merging/patience",
        "time and time > call.now_us and",
        "time and",
        _PATIENT + "test_a_call_whose_time_came_long_ago_waits_for_nothing",
    ),
    Fault(
        "merging/patience",
        "not lanes.is_on_demand(lane) and",
        "true and",
        _PATIENT + "test_a_call_on_demand_waits_for_nothing",
    ),
    Fault(
        "merging/patience",
        " and bytes < most_bytes",
        "",
        _PATIENT + "test_a_call_that_fills_a_run_by_itself_waits_for_nothing",
    ),
    Fault("merging/patience", '    redis.call("HSET", key.job(id), "state", "scheduled")\n', "", _WAIT_ANEW),
    Fault(
        "merging/patience",
        '    redis.call("HDEL", key.job(first), "patient")\n',
        "",
        _PATIENT + "test_only_what_waits_for_more_says_until_when",
    ),
    Fault(
        "merging/patience",
        '    redis.call("ZREM", key.scheduled, first)\n',
        "",
        _PATIENT + "test_purge_deletes_what_is_patient",
    ),
    Fault("merging/patience", "    if time > protocol.AT_ONCE_US then", "    if true then"),
    Fault(
        "merging/patience",
        "    if time > protocol.AT_ONCE_US then",
        "    if time > call.now_us then",
        _PATIENT + "test_a_run_whose_patience_has_ended_runs_even_if_the_clock_is_set_back_after_another_began",
    ),
    Fault("merging/patience", "row.is_full or lanes.is_on_demand(row.lane)", "row.is_full"),
    Fault(
        "merging/patience",
        "row.is_full or lanes.is_on_demand(row.lane)",
        "lanes.is_on_demand(row.lane)",
        _PATIENT + "test_a_run_that_is_full_waits_for_nothing",
    ),
    Fault(
        "merging/patience",
        "elseif time > call.now_us then",
        "else",
        _PATIENT + "test_a_call_that_joins_when_the_run_has_waited_enough_keeps_the_run_waiting_no_longer",
    ),
    Fault(
        "merging/patience",
        "until_when(row.rules, row.enqueued)",
        "until_when(row.rules, call.now)",
        _PATIENT + "test_no_run_waits_longer_in_all_than_it_may",
    ),
    Fault("merging/callers", '            redis.call("ZREM", key.scheduled, batch)\n', ""),
    Fault("merging/callers", 'and state ~= "scheduled" then', "then"),
    Fault("jobs/enter", '    if waits_as == "patient" then\n', "    if false then\n", _WAIT_ANEW),
    Fault(
        "merging/call_hooks",
        "return batch or is_patient",
        "return batch",
        _PATIENT + "test_a_call_is_patient_once_its_own_time_has_come",
    ),
    Fault(
        "arrows/tick",
        "        if row[5] or row[6] then",
        "        if row[6] then",
        _PATIENT + "test_calls_that_fall_due_join_what_has_waited_enough_at_that_moment",
    ),
    Fault(
        "arrows/tick",
        "if patient or rank or not hooks",
        "if rank or not hooks",
        _PATIENT + "test_a_call_to_which_none_comes_runs_alone",
    ),
    Fault(
        "arrows/tick",
        '        redis.call("HDEL", key.job(id), "patient")\n',
        "",
        _PATIENT + "test_only_what_waits_for_more_says_until_when",
    ),
    # Calls leave.
    Fault("merging/callers", "== id then\n        redis.call", "then\n        redis.call"),
    Fault("merging/callers", "if id == primary or (how", "if (how"),
    Fault(
        "merging/callers",
        'how == "expired" and not has_expired',
        "false",
        _TESTS + "test_a_call_that_has_expired_is_not_run_and_one_that_expires_during_the_run_gets_its_result",
    ),
    Fault("merging/callers", 'how == "expired" and not has_expired', 'how == "expired"'),
    Fault("merging/callers", 'elseif state ~= "pending" and state ~= "scheduled" then', "elseif false then"),
    Fault("merging/callers", "            hooks.leave(batch, type, lane)\n", ""),
    Fault("merging/callers", '    redis.call("HDEL", key.job(batch), unpack(fields))', ""),
    Fault("merging/callers", "    callers.close(batch, type, rules, name)\n", ""),
    Fault("merging/callers", '    redis.call("HDEL", key.job(id), "into")\n', ""),
    Fault(
        "merging/call_hooks",
        '"rank"))\n    callers.close(id, type, its_rules, name)\n    if state == "pending" or state',
        '"rank"))\n    if state == "pending" or state',
    ),
    Fault("merging/call_hooks", "callers.close(id, known.type, known.rules, known.name)", ""),
    Fault("merging/call_hooks", "    callers.close(id, row.type, row.rules, row.name)\n", ""),
    Fault(
        "merging/call_hooks",
        '    callers.close(id, type, its_rules, name)\n    if state == "pending" or patient',
        '    if state == "pending" or patient',
    ),
    # A call leaves to its batch what both say.
    Fault(
        "merging/merging",
        "number <= protocol.MOST_MOVES or marks.has_key(id)",
        "number <= protocol.MOST_MOVES",
        _SAY_THEIR_RULES,
    ),
    Fault("jobs/rule_texts", "most or protocol.USUAL_MOST)", "most or 2)"),
    Fault(
        "jobs/rule_texts",
        "most_bytes or protocol.USUAL_MOST_BYTES)",
        "most_bytes or 2000)",
        _TESTS + "test_calls_that_are_due_join_up_to_the_usual_bound_on_bytes_which_their_rows_do_not_say",
    ),
    Fault(
        "arrows/part",
        "bytes = bytes + redis",
        "bytes = 0 * redis",
        _PART + "test_what_goes_has_as_much_room_for_newcomers_as_its_messages_leave",
    ),
    Fault("arrows/announce", 'deliveries or "0",', "deliveries,"),
    Fault(
        "merging/call_hooks",
        'USUAL_BOUNDS .. "%f[%D]"',
        "USUAL_BOUNDS",
        _TESTS + "test_usual_bounds_of_a_run_go_without_saying",
    ),
)
