"""Conclusions from the interval in which a worker sends heartbeats. Times and intervals of a call are in one unit."""

#: Silence, in intervals of a heartbeat, after which a worker is late: two missed heartbeats, and half an interval for
#: the second to arrive.
_LATE = 2.5

#: Time, in intervals of a heartbeat, until a worker has said what happened: each one says which jobs have started.
_SAID = 2

#: Shortest worker timeout, in intervals of a heartbeat: one late heartbeat is no death.
_SHORTEST_TIMEOUT = 2


def is_late(silence: float, interval: float) -> bool:
    """Return whether a worker with a heartbeat in each *interval* should have been heard in such a *silence*."""
    return silence > _LATE * interval


def has_been_said(age: float, interval: float) -> bool:
    """Return whether a worker has had the time to say what happened *age* ago."""
    return age > _SAID * interval


def is_too_short(timeout: float, interval: float) -> bool:
    """Return whether one late heartbeat looks like death, since *timeout* is too short for *interval*."""
    return timeout < _SHORTEST_TIMEOUT * interval
