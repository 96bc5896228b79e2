"""The jobs that a list is to have: the checks of a filter, and the indexes in which its jobs are."""

from dataclasses import dataclass

from ..errors import refuse
from ..rules import patterns
from ..rules.type_name import ACCEPTED, is_type
from ..rules.unreadable import is_text
from .jobs import STATES, Job
from .messages import Holds

#: Indexes in the order in which they are listed, by the state of their jobs.
_INDEXES = {
    "claimed": ("claims",),
    "running": ("claims",),
    "pending": ("lanes", "kept_lanes"),
    "scheduled": ("scheduled",),
    "dead": ("dead",),
    "done": ("ended",),
    "failed": ("ended",),
    "revoked": ("untold", "ended"),
    "expired": ("untold", "ended"),
}

_OF_STATES = ("claims", "lanes", "kept_lanes", "scheduled", "dead")
_OF_STAMPS = ("stamped",)

#: All indexes, in the order in which a list without a state, and its cursor, go through them.
ALL_INDEXES = (*_OF_STATES, *_OF_STAMPS, "untold", "ended")

#: States of which there is a list only if `affinity_keep` is more than a minute.
KEPT = ("done", "failed", "revoked", "expired")

#: States of which there is a list.
LISTED = tuple(_INDEXES)


@dataclass(frozen=True)
class Filter:
    """The jobs that are meant. *type*: a name; *task*: a name or a pattern, ``*`` stands for anything.

    *stamp*: "name=value", as Celery's commands have it. *before_s*, *since_s*: Unix times; only jobs that were enqueued
    before the one, and not before the other. *key*: the key of which a limited number of jobs run together. *holds*:
    whether the message of a job is meant; of a run of merged calls, all messages must be.
    """

    state: str | None = None
    type: str | None = None
    task: str | None = None
    stamp: str | None = None
    before_s: float | None = None
    key: str | None = None
    since_s: float | None = None
    holds: Holds | None = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in LISTED:
            known = f"a state that has a list ({', '.join(LISTED)})"
            if self.state in STATES:
                known += "; jobs of other states are found by their id alone"
            raise refuse("state", known, self.state)
        if self.type is not None and not is_type(self.type):
            raise refuse("type", ACCEPTED, self.type)
        if self.stamp is not None and not (is_text(self.stamp) and "=" in self.stamp):
            raise refuse("stamp", "a name and a value, name=value", self.stamp)

    @property
    def leaves_out(self) -> bool:
        """Whether the index of a state has jobs that are not meant."""
        of_type = self.type is not None and self.state != "pending"
        further = (self.task, self.stamp, self.before_s, self.key, self.since_s, self.holds)
        return of_type or any(each is not None for each in further) or self.state in ("claimed", "running", *KEPT)

    @property
    def indexes(self) -> tuple[str, ...]:
        """The names of the Redis keys that list the jobs which may match."""
        if self.stamp is not None:
            return _OF_STAMPS
        return _OF_STATES if self.state is None else _INDEXES[self.state]

    def admits(self, job: Job) -> bool:
        """Return whether the facts of *job* are as wanted; its message is another question (`holds`)."""
        return (
            self.state in (None, job.state)
            and (self.state is not None or job.state not in KEPT)
            and self.type in (None, job.type)
            and (self.task is None or patterns.matches(self.task, job.task or ""))
            and (self.key is None or self.key in job.keys)
            and (self.before_s is None or (job.enqueued_s or 0) <= self.before_s)
            and (self.since_s is None or (job.enqueued_s or 0) >= self.since_s)
        )
