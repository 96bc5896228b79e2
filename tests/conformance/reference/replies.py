"""What the arrows reply."""

from collections.abc import Sequence, Set
from typing import NamedTuple

from .model import Delivery

#: `unfilled` that names no type, since the call got to all pending jobs.
NONE: Set[str] = frozenset()

# *unfilled*: types whose pending jobs a call did not get to, since it moves `MAX_MOVES` at most: the caller passes
# them to `claim`. *again*: the arrow itself has more to do.


class Published(NamedTuple):
    """*state*: 0 the id was known already, 1 pending or placed, 2 scheduled, 3 revoked before, or expired, 5 refused.

    And 6: merged with others that wait. 7: as many wait as the type in *refused* may have: all of the call is refused.

    Of `ingest` also -1: the message is not next in its list, and 4: it is a dead letter.

    Not *served*: it is pending, and no live worker serves its type. *refused*: for which field.
    """

    state: int
    unfilled: Set[str]
    served: bool
    refused: str | None = None


class Joined(NamedTuple):
    """*namesake*: a live worker that has the same node name. *replaced*: settings that were otherwise so far.

    *void_up_to*: claims with a fencing number up to this are not the worker's.

    *now_us*: what the server's clock says: by it the worker knows whether a job that waits there has expired.
    """

    unfilled: Set[str]
    namesake: str | None
    replaced: list[str]
    void_up_to: int
    now_us: int


class Released(NamedTuple):
    """*deliveries*: the jobs that the caller got for its free slots, if it takes them inline."""

    unfilled: Set[str]
    deliveries: list[Delivery]


class Synced(NamedTuple):
    """Not *known*: join again. *asked*: claims it did not name. *void*: jobs it named that are not its own.

    *revision*: that of the settings in force. *now_us*: as in `Joined`. *returned*: jobs of its that are pending again.
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
    """*revision*: that of the settings in force."""

    revision: int
    unfilled: Set[str]


class Resumed(NamedTuple):
    """*resumed*: whether it was paused."""

    resumed: bool
    unfilled: Set[str]


class Left(NamedTuple):
    """*unfinished*: the worker still holds something. *returned*: how many jobs are pending again."""

    unfilled: Set[str]
    unfinished: bool
    returned: int


class Beaten(NamedTuple):
    """Not *known*: nothing changed."""

    known: bool
    again: bool
    unfilled: Set[str]


class Recovered(NamedTuple):
    """*recovered*: jobs that came back."""

    again: bool
    recovered: int
    unfilled: Set[str]


class Ticked(NamedTuple):
    """*next_due_us*: until the next scheduled job is due, or None. *unreported*: some ends are to be told.

    *recurring*: some recurring calls are due (`due`). *lists*: those with messages of stock Celery. *ticked_us*: the
    time of the tick before, None if there was none.
    """

    again: bool
    next_due_us: int | None
    due: int
    recovered: int
    dead_workers: int
    unreported: bool
    recurring: bool
    lists: Sequence[str]
    unfilled: Set[str]
    now_us: int
    ticked_us: int | None


class Revoked(NamedTuple):
    """*ended*: how many jobs. *left*: with how many of the names, the last ones, the caller is to go on.

    *after*: what it then says: the number of the last job that was looked at of the first of these tasks; else 0.
    """

    ended: int
    left: int
    after: int


class Purged(NamedTuple):
    """*deleted*: how many jobs."""

    deleted: int
    again: bool


class Replayed(NamedTuple):
    """*job_ids*: those that are pending again."""

    unfilled: Set[str]
    job_ids: list[str]


class WasFound(NamedTuple):
    """The *state* of a job, or of the batch that it was merged into; "": not known. *calls*: those of the batch."""

    state: str
    calls: int


class Moved(NamedTuple):
    """*served*: whether a live worker serves the type. *found*: what was known of each job before."""

    unfilled: Set[str]
    served: bool
    found: list[WasFound]


class DueCall(NamedTuple):
    """A recurring call that is to be made. *due*: the time, µs, by which `fire` knows that it is so still."""

    name: str
    due: str
    task: str
    signature: str


class Caller(NamedTuple):
    """A call of a batch. *published_us*: when it was, a retry as its first attempt. *message*: "" if it is gone."""

    job_id: str
    task_id: str
    published_us: int
    message: str


class Callers(NamedTuple):
    """*after*: what the next call is to say; -1 if these are all. *primary_us*: when the other call was published."""

    after: int
    primary_us: int
    callers: list[Caller]


class Parted(NamedTuple):
    """*calls*: how many went into a batch of their own; -1 if the batch was not the caller's."""

    calls: int
    unfilled: Set[str]


class Ending(NamedTuple):
    """How a job ended without a worker. *how*: "revoked", "expired", or the reason for which it is dead.

    Of a batch also "shared": its run has ended, and some calls do not know their result.

    *since_us*: how long ago. *for_anyone*: whether an app tells it as well that does not know its task. *message*: ""
    if it is gone, None if it is large.
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
