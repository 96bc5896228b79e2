"""Faults in how keys keep jobs back, and let them go on."""

from .fault import Fault

_SAID_AGAIN = "tests/server/test_type_rules.py::test_a_pause_that_is_said_again_ends_as_it_was_said_last"
_OF_MANY = "tests/server/test_type_rules.py::test_signs_for_a_large_fleet_are_put_by_the_ticks_that_follow"
_TWO_KEYS = "tests/server/test_job_fields.py::test_client_and_script_refuse_the_same_and_of_that_nothing_is_written"
_ANOTHER_LIMIT = "tests/server/test_type_rules.py::test_a_limit_of_a_type_that_becomes_another_one_is_in_force_at_once"
_NOT_AHEAD = "tests/server/test_type_rules.py::test_no_job_of_a_type_with_a_limit_is_held_ahead"
_NOBODY_WAITS = "tests/server/test_key_patience.py::test_a_turn_ends_at_the_next_tick_once_nobody_waits_for_it"
_PROLONGED = "tests/server/test_key_patience.py::test_a_further_end_does_not_prolong_a_turn"
_BEHIND = "tests/server/test_two_keys.py::test_who_was_held_up_by_one_that_waits_for_its_second_key_gets_the_free_slot"
_AT_ONCE = "tests/server/test_two_keys.py::test_who_was_held_up_by_one_that_moves_gets_the_free_slot_at_once"
_COMING = "tests/server/test_two_keys.py::test_what_a_task_states_of_a_key_stands_until_its_job_is_through"
_OF_RULES = "tests/server/test_costs_of_rules.py::"
_CHANGED = _OF_RULES + "test_very_many_limits_that_change_are_in_force_at_once_for_some_types_and_closed_for_others"
_LEAVE_NONE_CLOSED = _OF_RULES + "test_limits_that_change_while_types_are_being_opened_leave_none_closed"
_CLAIMS = _OF_RULES + "test_very_many_claims_are_counted_some_at_a_time"
_OPENED = _OF_RULES + "test_limits_of_very_many_types_are_set_at_once_and_opened_some_at_a_time"
_MANY_LANES = _OF_RULES + "test_a_key_over_very_many_lanes_changes_some_of_them_in_a_call"
_GOES_ON = _OF_RULES + "test_a_tick_goes_on_with_lanes_that_a_call_did_not_get_to"
_URGENT = _OF_RULES + "test_what_is_urgent_goes_first"
_OLD = _OF_RULES + "test_what_is_old_goes_first"
_IN_VAIN = _OF_RULES + "test_no_job_starts_that_stands_in_its_lane_in_vain"
_BESIDE = _OF_RULES + "test_a_job_that_is_published_beside_one_that_stands_in_vain_starts_with_the_next_tick"
_COMES_BACK = _OF_RULES + "test_a_job_that_comes_back_while_its_lanes_are_still_being_closed_waits_again"
_RATE_OF_MANY = _OF_RULES + "test_jobs_of_a_rate_in_very_many_lanes_start_no_faster"
_SYNC_OF_MANY = _OF_RULES + "test_a_sync_of_a_worker_with_very_many_types_chooses_among_some"
_STILL_COUNTED = "tests/server/test_type_rules.py::test_a_type_whose_claims_are_still_counted_is_not_full_yet"
_OVER = "tests/server/test_type_rules.py::test_a_pause_that_is_over_puts_no_further_signs"
_EQUAL = "tests/server/test_key_patience.py::test_of_types_that_have_waited_equally_long_the_first_by_name"
_PATTERNS = "tests/server/test_keyed.py::test_an_exact_name_counts_before_all_patterns_then_the_longest_pattern"
_LEFT_TO_A_TICK = "tests/server/test_keyed.py::test_a_retry_that_was_left_to_a_tick_starts_when_the_key_is_kept_for_it"
_NOT_DUE = "tests/server/test_keyed.py::test_a_retry_that_is_not_due_yet_gives_nobody_more_to_do"
_TICK_FILLS = "tests/server/test_keyed.py::test_what_gains_when_a_kept_retry_starts_is_filled_by_the_next_tick"
_NO_TURN = "tests/server/test_keyed.py::test_a_key_that_is_kept_for_a_retry_is_kept_for_no_type_besides"
_STATED = "tests/server/test_keyed.py::test_what_jobs_state_of_a_key_counts_as_long_as_the_key_is_held_or_kept"
_PAUSE_IS_OVER = (
    "tests/server/test_keyed.py::test_a_job_of_a_key_whose_pause_ends_in_the_tick_in_which_it_is_due_starts"
)
_TURNS = "tests/server/test_key_patience.py::test_a_turn"
_REPAIR_SET_BACK = (
    "tests/server/test_key_patience.py"
    "::test_a_repair_after_the_clock_was_set_back_finds_nothing_and_a_tick_ends_the_turn"
)
_KEPT_FOR_A_RETRY = "tests/server/test_keyed.py::test_a_key_that_is_kept_for_a_retry_is_kept_for_no_type_besides"
_IS_PURGED = "tests/server/test_keyed.py::test_a_key_is_kept_no_more_for_a_retry_that_is_purged_before_its_time"
_NOBODY_YET = (
    "tests/server/test_type_rules.py::test_a_limit_that_changes_while_claims_are_counted_opens_the_type_to_nobody_yet"
)
_NO_LIMIT_COUNTS = _OF_RULES + "test_very_many_claims_that_no_limit_counts_are_looked_at_some_at_a_time"

_GOES_ON_TO_IT = (
    "tests/server/test_key_patience.py::test_a_turn_goes_on_while_a_job_of_its_type_comes_to_the_key_from_its_rate"
)

FAULTS = (
    Fault("base/texts", '"^" .. of_lua .. "$"', '"^" .. of_lua', _PATTERNS),
    Fault("base/texts", '"%%%0"), "%*", ".*")', '"%%%0"), "%*", ".")'),
    Fault("base/many", "last = math.min(first + protocol.MOST_UNPACKED - 1, #values)", "last = first + 1"),
    Fault("keyed/key_room", "least = math.min(least, tonumber(text) or least)", "least = tonumber(text) or least"),
    Fault("keyed/key_room", "string.find(text, form) and texts.matches(pattern, its_key)", "false"),
    Fault("keyed/key_room", "string.find(text, form) and texts.matches", "texts.matches"),
    Fault("keyed/key_room", "set_most or most, set_period_us or period_us", "most, period_us"),
    Fault("keyed/key_room", 'rate_in(set_for(its_key, "/") or "")', 'rate_in("")'),
    Fault("keyed/key_turns", "room > 1 or (room == 1 and", "room >= 0 or (room == 1 and"),
    Fault(
        "keyed/key_standing",
        "job = room >= 0 and",
        "job =",
        "tests/server/test_keyed.py::test_what_closes_a_key_keeps_its_retry_back_as_well",
    ),
    Fault("keyed/keyed", "return its.retry == id and room >= 0", "return its.retry == id and room < 0"),
    Fault(
        "keyed/keyed",
        '"type"), room, its)',
        '"type"), 2, its)',
        "tests/server/test_keyed.py::test_no_job_starts_of_a_key_whose_limit_was_lowered_and_that_no_tick_has_got_to_yet",
    ),
    Fault("keyed/key_steps", "    key_steps.keep_back_no_more(wanted, type, lane, sublane.has_more)\n", ""),
    Fault("keyed/key_steps", 'redis.call("HSET", key.kept_lanes, type .. " " .. lane, 1)', ""),
    Fault("keyed/key_steps", 'redis.call("HDEL", key.kept_lanes, type .. " " .. lane)', ""),
    Fault("keyed/key_standing", "if is_in_lane and (fills or (", "if is_in_lane and (false or ("),
    Fault("keyed/key_steps", "heads = lanes.without(id, type, lane, heads)", ""),
    # A job with two keys goes on from the first to the second, and back.
    Fault("keyed/key_steps", "= key_rows.add(next_key.key, its, wanted, type, lane, enqueued)", "= false"),
    Fault("keyed/key_steps", "        key_rows.remove(stated.key, key_rows.read(stated.key), id, type, lane)\n", ""),
    Fault("keyed/key_steps", "is_after = is_after or stated.key == its_key", "is_after = false"),
    Fault("keyed/key_standing", "            renewed[its_key] = true\n", ""),
    Fault(
        "keyed/key_steps",
        "        key_standing.renew_soon(stated.key)\n    end\n    hooks",
        "    end\n    hooks",
    ),
    Fault("keyed/key_standing", "has_left and keys.advanced[job]", "false", _AT_ONCE),
    Fault(
        "keyed/key_standing",
        'if key_steps.stands_for(its_keys, id, string.match(name, "^(%S+) (%S+)$")) then',
        "if true then",
    ),
    Fault(
        "keyed/key_steps",
        "keys.has_left and not (keys.called_back and keys.called_back[wanted])",
        "keys.has_left",
        "tests/server/test_two_keys.py"
        "::test_who_is_called_back_and_goes_on_again_in_one_call_has_no_tick_look_at_its_key",
    ),
    Fault("keyed/key_standing", "its_keys[is_rate and #its_keys > 1 and 2 or 1].key)", "its_keys[#its_keys].key)"),
    Fault(
        "keyed/key_standing",
        "its_keys[is_rate and #its_keys > 1 and 2 or 1].key)",
        "its_keys[is_rate and 2 or 1].key)",
        _BEHIND,
    ),
    Fault("keyed/key_standing", "has_left and keys.has_left_several and is_in_lane", "false", _BEHIND),
    Fault("keyed/key_standing", "keys.has_left_several and keys.is_renewed_later\n", "true\n"),
    Fault("keyed/keyed", "key_rows.of_call().has_left_several or nth > 1", "false", _BEHIND),
    Fault("keyed/key_steps", "if not sublane or not (sublane", "if false and not (sublane"),
    Fault("arrows/revoke", "    hooks.leave_to_tick()\n", ""),
    Fault("arrows/purge", "    hooks.leave_to_tick()\n", ""),
    Fault("jobs/marks", "string.sub(id, -1) == protocol.MANY_KEYED", "false"),
    Fault("jobs/job_check", "not kind or kinds[kind] or kinds.tenant", "not kind or kinds.tenant", _TWO_KEYS),
    Fault("jobs/job_check", "not kind or kinds[kind] or kinds.tenant", "not kind or kinds[kind]", _TWO_KEYS),
    Fault("jobs/job_check", 'return not of_rate and "exclusive" or nil', 'return "exclusive"', _TWO_KEYS),
    Fault("jobs/job_check", "kinds.tenant and protocol.TENANTED or", "", _TWO_KEYS),
    Fault("jobs/job_check", "    if tenants.is_one(its_key) then", "    if false then", _TWO_KEYS),
    Fault("keyed/key_standing", "if heads ~= before[type] then", "if false then"),
    Fault("keyed/key_steps", "sublane.standing, sublane.is_changed = wanted, true", "sublane.standing = wanted"),
    Fault("keyed/key_rows", 'sublane.standing, sublane.is_changed = "", true', "", _COMES_BACK),
    Fault("keyed/key_rows", "sublane.first, sublane.enqueued, sublane.is_changed = first, enqueued, true", ""),
    Fault("keyed/key_rows", "sublane.first, sublane.enqueued, sublane.is_changed = id, enqueued, true", ""),
    Fault("keyed/keyed", "known.held = known.held - 1", ""),
    Fault("keyed/key_rows", "known.held + 1", "known.held"),
    Fault("keyed/key_standing", "        its.waits = false\n", ""),
    Fault("keyed/keyed", "    key_rows.of_call().known[its_key] = nil\n", "", _PAUSE_IS_OVER),
    Fault("keyed/key_standing", "job ~= sublane.standing and job or nil", 'job ~= "" and job or nil'),
    Fault("keyed/key_standing", 'redis.call("HDEL", key.of_key(its_key), task)', ""),
    Fault("keyed/key_standing", " and key_rows.held(its_key, its) == 0", "", _STATED),
    Fault("keyed/key_standing", "next(its.stated) and not its.retry and", "next(its.stated) and", _STATED),
    Fault("keyed/key_standing", " and not its.are_some_coming and", " and", _COMING),
    Fault("keyed/key_rows", 'redis.call("ZADD", key.coming(its_key), enqueued, id)', ""),
    Fault("keyed/key_rows", 'redis.call("HSET", key.of_key(its_key), "coming", 1)', "", _COMING),
    Fault("keyed/key_rows", 'redis.call("ZREM", key.coming(its_key), id)', ""),
    Fault("keyed/key_rows", 'redis.call("HDEL", key.of_key(its_key), "coming")', ""),
    Fault("keyed/key_rows", "        its.are_some_coming = false\n", ""),
    Fault("keyed/key_rows", "        its.are_some_coming = true\n    elseif", "    elseif", _COMING),
    Fault("keyed/keyed", "key_rows.expect_no_more(stated.key, its, id)", ""),
    Fault(
        "keyed/key_room", "its_most / its_period_us < most / period_us", "its_most / its_period_us > most / period_us"
    ),
    Fault("keyed/key_room", "math.min(most, math.floor(", "math.min(most + 1, 1 + math.floor("),
    Fault("keyed/key_room", "free_us - period_us + interval_us", "free_us - period_us"),
    Fault("keyed/key_room", "or 0, call.now_us + period_us)", "or 0)"),
    Fault(
        "keyed/key_room",
        "key_rows.held(its_key, its) - (its.retry and 1 or 0)",
        "key_rows.held(its_key, its)",
        "tests/server/test_keyed.py::test_what_closes_a_key_keeps_its_retry_back_as_well",
    ),
    Fault("keyed/key_rows", "    its[what] = nil\n", ""),
    Fault(
        "keyed/key_rows",
        '    its[what] = nil\n    redis.call("ZADD", key.due_keys, protocol.AT_ONCE_US, its_key)',
        "    its[what] = nil",
    ),
    Fault("keyed/keyed", '        key_rows.keep_for_nobody(stated.key, its, "retry")\n        its.waits = true\n', ""),
    Fault("keyed/keyed", "if stated.keeps_order then", "if true then"),
    Fault("keyed/keyed", "= is_pending or call.to_fill", "= call.to_fill", _LEFT_TO_A_TICK),
    Fault("keyed/keyed", "= is_pending or call.to_fill", "= true or call.to_fill", _NOT_DUE),
    Fault(
        "keyed/keyed",
        "key_rows.has(other, its_key) and key_turns.is_open(type)",
        "key_rows.has(other, its_key)",
        "tests/server/test_keyed.py::test_a_key_is_not_kept_for_a_retry_whose_type_is_held_back",
    ),
    Fault("keyed/keyed", 'or state == "scheduled")', ")", _KEPT_FOR_A_RETRY),
    Fault("keyed/key_turns", "if its.turn and not waits(its) then", "if false then"),
    Fault("keyed/key_turns", "if its.turn and not waits(its) then", "if its.turn then", _GOES_ON_TO_IT),
    Fault("keyed/key_turns", "if ends_us <= call.now_us or began", "if began"),
    Fault("keyed/key_turns", "or began_us > call.now_us then", "then", f"{_TURNS}_of_a_clock_that_was_set_back_ends"),
    Fault(
        "repair/repair_keyed",
        "if due_us and tonumber(its.turn_began or 0) > call.now_us then",
        "if false then",
        _REPAIR_SET_BACK,
    ),
    Fault(
        "repair/repair_keyed",
        "due_us and tonumber(its.turn_began or 0) > call.now_us",
        "due_us and its.turn_began",
        "tests/server/test_key_patience.py::test_a_repair_leaves_a_turn_as_it_is",
    ),
    Fault("keyed/key_turns", 'redis.call("ZADD", key.due_keys, its.turn_ends, its_key)', ""),
    Fault(
        "keyed/key_turns",
        "tonumber(sublane.enqueued) or call.now_us, its.had[type] or 0)",
        "tonumber(sublane.enqueued))",
    ),
    Fault("keyed/key_turns", "(at_us == since_us and longest and type < longest)", "false", f"{_EQUAL}_has_its_turn"),
    Fault("keyed/key_turns", "not longest or longest == its_type", "not longest"),
    Fault("keyed/key_turns", "patience_us == 0 or", ""),
    Fault("keyed/key_turns", "call.now_us - since_us < patience_us then", "false then"),
    Fault("keyed/key_turns", "longest)) or 0) > 0 and key_turns.is_open(longest) then", "longest)) or 0) > 0 then"),
    Fault(
        "keyed/key_turns",
        "longest)) or 0) > 0 and key_turns.is_open(longest) then",
        "longest)) or 0) >= 0 and key_turns.is_open(longest) then",
    ),
    Fault("keyed/key_turns", "record_had(its_key, its, longest)", ""),
    Fault("keyed/key_turns", "(room == 1 and (not its.turn or its.turn == type))", "room == 1"),
    Fault("keyed/key_turns", "room > 1 or (room == 1 and", "(room >= 1 and"),
    Fault(
        "keyed/key_turns",
        '    if its.turn == type then\n        key_rows.keep_for_nobody(its_key, its, "turn")\n',
        "    if its.turn == type then\n",
    ),
    Fault("keyed/key_turns", "    if fills then\n", "    if true then\n", _NOBODY_WAITS),
    Fault("keyed/key_rows", "key.due_keys, protocol.AT_ONCE_US, its_key", "key.due_keys, call.now, its_key"),
    Fault("keyed/key_turns", "        if sublane.type ~= type then", "        if true then"),
    Fault("keyed/key_turns", "            record_had(its_key, its, type)\n", ""),
    Fault("keyed/keyed", "elseif not its.turn and not its.retry then", "elseif not its.retry then", _PROLONGED),
    Fault("keyed/keyed", "elseif not its.turn and not its.retry then", "elseif not its.turn then", _NO_TURN),
    Fault("keyed/key_standing", 'redis.call("HDEL", key.of_key(its_key), "@" .. type)', ""),
    Fault("arrows/tick", "first_time(key.due_keys), ", ""),
    Fault("arrows/purge", "forget(arguments[i], type, lane)", "forget(arguments[i], type)", _IS_PURGED),
    Fault("keyed/key_standing", 'redis.call("ZREM", key.waiting_keys, its_key)', ""),
    Fault("keyed/keyed", "(is_fresh or not its.stated[task])", "true"),
    Fault("keyed/keyed", "(is_fresh or not its.stated[task])", "not its.stated[task]"),
    Fault(
        "keyed/keyed",
        "its.stated[task] = stated.states\n        key_standing.renew_soon(its_key)\n",
        "its.stated[task] = stated.states\n",
    ),
    Fault("keyed/key_rows", '"NX", keyed.revision()', '"NX", 0'),
    Fault("keyed/key_rows", 'redis.call("ZADD", key.held(its_key), fence, id)', ""),
    Fault("keyed/keyed", 'if redis.call("ZREM", key.held(its_key), id) == 0 then', "if false then"),
    Fault("keyed/keyed", '"-inf", "(" .. now', '"-inf", now'),
    Fault("keyed/keyed", 'redis.call("ZADD", key.waiting_keys, now, its_key)', ""),
    Fault("jobs/hooks", "types[#types + 1] = is_to_fill and job_check.is_type(type) and type or nil", ""),
    Fault("jobs/claims", "hooks.free(id, known.type, row[9], known.rules, known.name)", ""),
    Fault("jobs/come_back", "hooks.free(id, type, is_limited, rules, name)", ""),
    Fault("jobs/enter", "their_types, left = hooks.with_to_fill(their_types)", "call.to_fill = nil"),
    Fault("placing/fill", "types, left = hooks.with_to_fill(types)", "call.to_fill = nil"),
    Fault("placing/fill", "    call.claiming = waiting\n", ""),
    Fault("placing/fill", "    call.claiming = false\n", ""),
    Fault("placing/lanes", '        return call.claiming.heads[type] or ""\n', '        return ""\n'),
    Fault("placing/candidates", "    change(waiting, type, heads)\n", "    waiting.heads[type] = heads\n"),
    Fault("placing/candidates", "        waiting.choice:changed(type)\n", "        tostring(type)\n"),
    Fault(
        "placing/fill",
        "hooks.hold(id, job.type, job.lane, fence, is_out_of_turn)",
        "hooks.leave_gate(id, job.type, job.lane)",
    ),
    Fault(
        "placing/fill",
        "hooks.leave_gate(id, job.type, job.lane)",
        "hooks.hold(id, job.type, job.lane, fence, is_out_of_turn)",
    ),
    Fault("placing/fill", "(has_limit or (is_ruled and", "(has_limit or (false and"),
    Fault("placing/fill", "(is_ruled and not hooks.may_be_ahead(id))", "is_ruled"),
    Fault("arrows/release", "if free_slots.free_for(type) > 0 then", "if false then"),
    Fault("arrows/purge", "hooks.leave_gate(id, type, lane)", ""),
    Fault("arrows/configure", "hooks.recheck()", ""),
    Fault("arrows/join", "hooks.recheck()", ""),
    Fault("placing/fill", "view.is_ahead and (has_limit or (", "view.is_ahead and (false or (", _NOT_AHEAD),
    Fault(
        "placing/candidates",
        'nil, "closed"',
        "nil, nil",
        "tests/server/test_type_rules.py::test_what_a_key_changes_in_a_type_that_the_call_has_closed_is_written",
    ),
    Fault("jobs/enter", "heads or has_type_rules or not is_only", "heads or not is_only"),
    Fault("types/type_rules", "rule.is_full or rule.is_being_counted or", "rule.is_full or"),
    Fault("types/type_rules", "if was_closed[type] and not type_rules.is_closed(rule) then", "if false then"),
    Fault(
        "types/type_rules", "rule.is_full = not rule.is_being_counted and redis", "rule.is_full = redis", _STILL_COUNTED
    ),
    Fault("types/type_rules", "gone[#gone + 1] = type", ""),
    Fault("types/type_rules", "if all or type_rules.is_closed(rule) then", "if type_rules.is_closed(rule) then"),
    Fault("types/type_rules", 'redis.call("ZREM", key.limited(type), id)', ""),
    Fault("types/type_rules", 'redis.call("HDEL", key.job(id), "limited")', ""),
    Fault("types/type_changes", "if is_any_new then", "if false then"),
    Fault("types/type_changes", "limit ~= old[type] and type or nil", "not old[type] and type or nil", _ANOTHER_LIMIT),
    Fault("base/limits", '"%f[^%s%z]type%%3A(%S+)=(%d+)"', '"type%%3A(%S+)=(%d+)"'),
    Fault("base/limits", "type, last and last + 1", "type, nil"),
    Fault("base/limits", "%f[^%s%z]type%%3A%S+ *", "type%%3A%S+ *"),
    Fault("base/limits", 'return string.match(words, "^ *(.-) *$")', "return words"),
    Fault("types/type_changes", "(rule.is_being_counted or is_new) or false", "is_new or false", _NOBODY_YET),
    Fault("types/type_changes", "limit and not rule.is_being_counted and redis", "limit and redis"),
    Fault("types/type_changes", "counted < protocol.MOST_FILLED) or", "true) or", _CHANGED),
    Fault("types/type_changes", 'redis.call("SET", key.recount, 0, "XX")', "", _LEAVE_NONE_CLOSED),
    Fault("types/type_changes", "if counted == protocol.MOST_CLAIMS then", "if false then", _CLAIMS),
    Fault("types/type_changes", "if looked_at >= protocol.MOST_CLAIMS then", "if false then", _NO_LIMIT_COUNTS),
    Fault("types/type_changes", "#types < protocol.MOST_FILLED do", "true do", _OPENED),
    Fault("types/type_changes", 'redis.call("SET", key.recount, next_from)', "", _OPENED),
    Fault("types/type_changes", "rules[type].limit or reserves", "reserves"),
    Fault("types/type_changes", "if rule.is_being_counted then", "if false then"),
    Fault("types/type_changes", 'call.to_fill[some[i]] = some[i] ~= "!"', ""),
    Fault("types/rule_changes", 'redis.call("ZREM", key.pause_ends, what)', ""),
    Fault("types/rule_changes", "key.recount, key.pause_ends, key", "key.pause_ends, key"),
    Fault("types/rule_changes", "key.pause_ends, key.pause_signs,", "key.pause_ends,", _OF_MANY),
    Fault("types/rule_changes", 'redis.call("HINCRBY", key.settings, "revision", 1)', ""),
    Fault("types/rule_changes", '        redis.call("ZREM", key.pause_signs, what)\n', "", _OVER),
    Fault("types/rule_changes", "has_more_claims or has_more_signs or", "has_more_claims or", _OF_MANY),
    Fault("types/rule_changes", '"RPUSH"', '"LPUSH"'),
    Fault("types/rule_changes", '(redis.call("GET", key.fence) or "0")', '"0"'),
    Fault("types/rule_changes", 'redis.call("ZREM", key.pause_signs, what)\n    return', "return"),
    Fault("types/rule_changes", 'redis.call("ZADD", key.pause_signs, next_from, what)', "", _OF_MANY),
    Fault("fleet/workers", "if #page < 2 * most then", "if true then", _OF_MANY),
    Fault("arrows/pause", "    workers.have_one_tick()\n", "", _OF_MANY),
    Fault("keyed/key_room", "    if its.is_paused then", "    if false then"),
    Fault("arrows/pause", 'redis.call("ZREM", key.pause_ends, what)', "", _SAID_AGAIN),
    Fault("arrows/resume", "rule_changes.pause(what)", ""),
    Fault("types/type_changes", "return limits.of_keys(before) ~= limits.of_keys(now)", "return true"),
    Fault("types/type_changes", "return limits.of_keys(before) ~= limits.of_keys(now)", "return false"),
    Fault("keyed/key_standing", "if #opened > left.to_open then", "if false then", _MANY_LANES),
    Fault("keyed/key_standing", "math.min(#closed, left.to_close)", "#closed", _IN_VAIN),
    Fault("keyed/key_standing", "    key_rows.of_call().is_unfinished = true\n", "", _GOES_ON),
    Fault("keyed/key_standing", "if #changed < number then", "if false then", _GOES_ON),
    Fault("keyed/key_standing", "oldest[nth], most_urgent[nth]", "oldest[nth], nil", _URGENT),
    Fault("keyed/key_standing", "return 99 - lanes", "return 10 + lanes", _URGENT),
    Fault("keyed/key_standing", "oldest[nth], most_urgent[nth]", "most_urgent[nth], nil", _OLD),
    Fault("keyed/keyed", 'and not redis.call("ZSCORE", key.due_keys, its_key)', "", _RATE_OF_MANY),
    Fault("keyed/keyed", "or key_steps.is_in_lane(its_key, sublane)", "", _BESIDE),
    Fault("placing/candidates", "== has_demand then", "~= has_demand then", _SYNC_OF_MANY),
    Fault("placing/candidates", "#waiting > protocol.MOST_CHOSEN_FROM then", "false then", _SYNC_OF_MANY),
    Fault("placing/fill", "{ waiting.left, nil, nil }", '{ "", nil, nil }', _SYNC_OF_MANY),
    Fault("arrows/sync", "free > 0 or returned > 0 or next", "returned > 0 or next"),
    Fault("arrows/sync", "free > 0 or returned > 0 or next", "free > 0 or next"),
    Fault("fleet/workers", "elseif sum + by > 0 then", "elseif true then"),
    Fault("fleet/workers", 'many.call("HDEL", key.capacity, gone)', ""),
)
