"""Faults in recurring calls: when they are due, and what puts them off."""

from .fault import Fault

_TESTS = "tests/server/test_recurring.py::"

FAULTS = (
    # What puts a call off, and what does so no more.
    Fault("jobs/enter", "        if not is_again then\n", "        if true then\n"),
    Fault("jobs/enter", '        if is_again and job.rules ~= ""', '        if false and job.rules ~= ""'),
    Fault("jobs/enter", "job.task_id, job.recurring)", "job.task_id)"),
    Fault("arrows/tick", '        recurs("match", type, rules, name, task, fired)\n', ""),
    Fault("arrows/tick", "    if not is_again then\n", "    if true then\n"),
    Fault("arrows/tick", "name, task, fired)", "name, task)"),
    Fault("jobs/recurring", "if its_since == since and tonumber(stale_us) then", "if tonumber(stale_us) then"),
    Fault("jobs/recurring", "(row.name ~= fired and 1 or 0)", "1"),
    Fault("jobs/recurring", "if not is_suspended then", "if true then"),
    Fault("jobs/recurring", '(task or "") == "" or redis.call("GET", key.task(task)) == ran', "true"),
    Fault("jobs/recurring", "if due_us < row.due_us then", "if true then"),
    Fault("jobs/recurring", "math.max(clock.now_us + 1, (tonumber(enqueued)", "math.max(0, (tonumber(enqueued)"),
    Fault("jobs/recurs", '"^merge=(%S+)")', '"^merge=(%S)")'),
    Fault("jobs/ends", 'if state == "pending" or state == "claimed" or (state', "if true or (state"),
    Fault("jobs/ends", 'state == "pending" or state == "claimed" or (state', 'state == "pending" or (state'),
    Fault("jobs/ends", 'or (state == "scheduled" and patient) then', "then"),
    Fault("arrows/purge", 'if state == "pending" or patient then', 'if state == "pending" then'),
    Fault("jobs/ends", '            recurs("take_back", type, rules, name, enqueued)\n', ""),
    Fault("jobs/callers", '    recurs("take_back", type, rules, name, enqueued)\n', ""),
    Fault("arrows/purge", '            recurs("take_back", type, rules, name, enqueued)\n', ""),
    Fault("jobs/finished", 'state == "done" and not known.is_doubtful', "not known.is_doubtful"),
    Fault("jobs/finished", 'state == "done" and not known.is_doubtful', 'state == "done"'),
    Fault("jobs/batch_release", "known.is_doubtful or not primary", "false"),
    Fault("jobs/batch_release", "known.ran, known.is_doubtful = primary,", "known.ran, known.is_doubtful = nil,"),
    # The clock is set back.
    Fault("arrows/tick", "        recheck_from = 0\n", ""),
    Fault("jobs/recurring_recheck", "(tonumber(due) or 0) > latest_us", "false"),
    Fault("jobs/recurring_recheck", "at_us > latest_us and at_us ~= math.huge", "at_us > latest_us"),
    Fault("jobs/recurring_recheck", "at_us > latest_us and at_us ~= math.huge", "false"),
    # What a tick says.
    Fault("arrows/tick", "tonumber(next_recurring) <= clock.now_us", "tonumber(next_recurring) < clock.now_us"),
    Fault("arrows/tick", '"(" .. clock.now, "+inf"', 'clock.now, "+inf"'),
    # Declaring.
    Fault(
        "arrows/recur", 'if app == "" or redis.call("HGET", key.recurring_of(app), name) ~= digest then', "if true then"
    ),
    Fault("arrows/recur", "old_digest ~= digest and old_app ~= app", "old_app ~= app"),
    Fault("arrows/recur", "old_digest ~= digest and old_app ~= app", "old_digest ~= digest"),
    Fault("arrows/recur", "math.max(clock.now_us, due - old_stale_us + stale_us)", "due - old_stale_us + stale_us"),
    Fault("arrows/recur", "due - old_stale_us + stale_us", "clock.now_us + stale_us"),
    Fault("arrows/recur", "        if old_stale ~= stale then\n", "        if true then\n"),
    Fault("arrows/recur", "        recurring_names.remove(old_place, name)\n", ""),
    Fault("arrows/recur", '"matched", "by", "left", "left_at")', '"left", "left_at")'),
    Fault("arrows/recur", '        redis.call("HSET", key.recurring_of(app), name, digest)\n', ""),
    Fault("jobs/recurring_names", "if each ~= name then", "if false then"),
    Fault("jobs/recurring_names", "protocol.MOST_ALIKE then", "math.huge then", _TESTS + "test_as_many_as_match_alike"),
    Fault("arrows/stop", 'if app == "" or its_app == app then', "if true then"),
    Fault("arrows/stop", '        redis.call("UNLINK", key.signature(name))\n', ""),
    Fault("arrows/stop", '        redis.call("ZREM", key.recurring, name)\n', ""),
    Fault("arrows/stop", '        redis.call("HDEL", key.recurring_of(app), name)\n', ""),
    Fault("arrows/suspend", '    redis.call("ZADD", key.recurring, "inf", name)\n', ""),
    Fault("arrows/suspend", "math.max(clock.now_us, tonumber(due) or 0)", "tonumber(due)"),
    Fault("arrows/suspend", "elseif is_suspended then", "else"),
    # A call that is due is handed out, and made.
    Fault("arrows/due", "elseif not is_left(left, left_at) then", "else"),
    Fault("arrows/due", "since_us < protocol.OTHERS_HAVE_US", "true"),
    Fault("arrows/due", "clock.text(clock.now_us + again_us)", "clock.now"),
    Fault("arrows/leave_due", "or since_us >= protocol.OTHERS_HAVE_US", ""),
    Fault("arrows/leave_due", "is_suspended or (", "("),
    Fault("arrows/leave_due", "(tonumber(due) or math.huge) > clock.now_us", "not due"),
    Fault("arrows/leave_due", 'redis.call("ZADD", key.recurring, clock.now, name)', ""),
    Fault("arrows/fire", "due ~= its_due or is_suspended", "due ~= its_due"),
    Fault("arrows/fire", "due ~= its_due or is_suspended", "is_suspended"),
    Fault("arrows/fire", 'due ~= "" and (tonumber(its_due) or 0) > clock.now_us', "false"),
    Fault("arrows/fire", "job.recurring = name\n", ""),
    Fault("arrows/fire", "if state ~= protocol.IS_KNOWN then", "if true then"),
    Fault("arrows/fire", "local bad = fields.bad(job)", "local bad"),
    Fault("arrows/fire", "recurring.set_due(name, clock.now_us + tonumber(stale_us), is_suspended)\n", ""),
)
