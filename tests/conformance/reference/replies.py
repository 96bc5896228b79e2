"""The replies of the server functions."""

from collections.abc import Sequence, Set
from typing import NamedTuple

from .model import Delivery

#: `unfilled` without types, because the invocation reached all pending jobs.
NONE: Set[str] = frozenset()

# *unfilled*: types whose pending jobs an invocation did not reach, because it moves at most `MAX_MOVES`. The caller
# passes them to `claim`. *again*: the function itself has more to do.


class Published(NamedTuple):
    """*state*: 0 known id, 1 pending or placed, 2 scheduled, 3 already revoked or expired, 5 refused.

    6: merged with waiting calls. 7: the type in *refused* is at its bound, and the whole publish is refused.

    For `ingest` also -1: the message is not next in its list, and 4: it is a dead letter.

    Not *served*: it is pending, and no live worker serves its type. *refused*: the invalid field.
    """

    state: int
    unfilled: Set[str]
    served: bool
    refused: str | None = None


class Joined(NamedTuple):
    """*namesake*: a live worker with the same node name. *replaced*: settings that had other values.

    *void_up_to*: claims with a fencing token up to this do not belong to the worker.

    *now_us*: the server's clock, by which the worker knows if a job that waits there has expired.
    """

    unfilled: Set[str]
    namesake: str | None
    replaced: list[str]
    void_up_to: int
    now_us: int


class Released(NamedTuple):
    """*deliveries*: the jobs for the caller's free slots, if it takes them inline."""

    unfilled: Set[str]
    deliveries: list[Delivery]


class Synced(NamedTuple):
    """Not *known*: join again. *asked*: claims it did not report. *void*: reported jobs that it does not hold.

    *revision*: the revision of the settings. *now_us*: as in `Joined`. *returned*: its jobs that are pending again.
    """

    known: bool
    ticker: bool
    unfilled: Set[str]
    asked: list[tuple[str, int]]
    void: list[str]
    revision: int
    now_us: int
    returned: int


class Configured(NamedTuple):
    """*revision*: the revision of the settings."""

    revision: int
    unfilled: Set[str]


class Resumed(NamedTuple):
    """*resumed*: True if it was paused."""

    resumed: bool
    unfilled: Set[str]


class Left(NamedTuple):
    """*unfinished*: the worker still holds jobs. *returned*: number of jobs that are pending again."""

    unfilled: Set[str]
    unfinished: bool
    returned: int


class Beaten(NamedTuple):
    """Not *known*: nothing changed."""

    known: bool
    again: bool
    unfilled: Set[str]


class Recovered(NamedTuple):
    """*recovered*: number of reclaimed jobs."""

    again: bool
    recovered: int
    unfilled: Set[str]


class Ticked(NamedTuple):
    """*next_due_us*: time until the next scheduled job is due, or None. *unreported*: there are unreported ends.

    *dead_workers*: names of removed workers. *recurring*: there are due recurring calls.
    *lists*: lists with messages of stock Celery. *ticked_us*: the time of the previous tick, or None.
    """

    again: bool
    next_due_us: int | None
    due: int
    recovered: int
    dead_workers: Sequence[str]
    unreported: bool
    recurring: bool
    lists: Sequence[str]
    unfilled: Set[str]
    now_us: int
    ticked_us: int | None


class Revoked(NamedTuple):
    """*ended*: number of jobs. *left*: number of names, the last ones, for which the caller must continue.

    *after*: the argument to continue with: the number of the last checked job of the first of these tasks, or 0.
    *others*: names with a job that did not wait, or without jobs.
    """

    ended: int
    left: int
    after: int
    others: list[str]


class Purged(NamedTuple):
    """*deleted*: number of jobs."""

    deleted: int
    again: bool


class Replayed(NamedTuple):
    """*job_ids*: the jobs that are pending again."""

    unfilled: Set[str]
    job_ids: list[str]


class WasFound(NamedTuple):
    """The *state* of a job, or of its batch; "" if unknown. *calls*: number of calls in the batch."""

    state: str
    calls: int


class Moved(NamedTuple):
    """*served*: True if a live worker serves the type. *found*: the former state of each job."""

    unfilled: Set[str]
    served: bool
    found: list[WasFound]


class DueCall(NamedTuple):
    """A recurring call to fire. *due*: the time in µs, which `fire_recurring` compares."""

    name: str
    due: str
    task: str
    signature: str


class Caller(NamedTuple):
    """A call of a batch. *published_us*: publish time of its first attempt. *message*: "" if deleted."""

    job_id: str
    task_id: str
    published_us: int
    message: str


class Callers(NamedTuple):
    """*after*: the next `after` argument, -1 after the last page. *primary_us*: the primary's publish time."""

    after: int
    primary_us: int
    callers: list[Caller]


class Parted(NamedTuple):
    """*calls*: number of calls split off, or -1 if the caller does not hold the batch."""

    calls: int
    unfilled: Set[str]


class Ending(NamedTuple):
    """How a job ended without a worker. *how*: "revoked", "expired", or the reason of its dead letter.

    For a batch also "shared": its run has ended, and some calls do not have the result.

    *since_us*: µs since the end. *for_anyone*: True if an app that does not define the task may report it. *message*:
    "" if deleted, None if it is large.
    """

    job_id: str
    how: str
    type: str
    task_id: str
    task_name: str
    deliveries: int
    since_us: int
    for_anyone: bool
    message: str | None
