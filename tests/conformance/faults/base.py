"""Faults in the parts that all arrows share: time, texts, settings, and the guard against a full memory."""

from .fault import Fault

_NO_UTF_8 = "tests/server/test_job_fields.py::test_a_task_name_that_is_no_utf_8_is_refused"
_WAIT_ANEW = "tests/server/test_patience.py::test_a_call_waits_for_more_which_wait_anew_and_then_they_run"
_NOTHING_CAME = "tests/server/test_recurring.py::test_a_call_is_due_when_nothing_that_matches_came_for_the_interval"

FAULTS = (
    Fault("base/call", 'string.sub("00000" .. us, -6)', "us", _WAIT_ANEW),
    Fault("base/call", 'string.format("%.0f", us)', "tostring(us)", _NOTHING_CAME),
    Fault("base/hash", '        redis.call("HDEL", name, field)\n', ""),
    Fault("base/flat", "of[list[i]] = list[i + 1]", "of[list[i]] = list[i]"),
    Fault("base/utf8", 'sequence, "?")', 'sequence, "")', _NO_UTF_8),
    Fault("base/settings_in_force", "if own or in_force == last then", "if true then"),
    Fault("base/settings_in_force", "own and own ~= value or not own and last ~= value", "last ~= value"),
    Fault("base/settings_in_force", "order ~= own and 1 or 0", "0"),
    Fault("base/settings_in_force", 'value ~= "" and value or own or nil', 'value ~= "" and value or nil'),
    Fault("base/settings_in_force", 'redis.call("EXPIRE", key.conf_of(app), protocol.CONF_KEPT_S)', ""),
)
