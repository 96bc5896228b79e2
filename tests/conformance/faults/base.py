"""Faults in the parts that all arrows share: settings, and the guard against a full memory."""

from .fault import Fault

FAULTS = (
    Fault("base/full_memory", 'redis.call("UNLINK", base .. "nothing")', ""),
    Fault("base/settings_in_force", "if own or in_force == last then", "if true then"),
    Fault("base/settings_in_force", "own and own ~= value or not own and last ~= value", "last ~= value"),
    Fault("base/settings_in_force", "order ~= own and 1 or 0", "0"),
    Fault("base/settings_in_force", 'value ~= "" and value or own or nil', 'value ~= "" and value or nil'),
    Fault("base/settings_in_force", 'redis.call("EXPIRE", key.conf_of(app), protocol.CONF_KEPT_S)', ""),
)
