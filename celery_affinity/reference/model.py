"""Jobs and workers as the scheduling rules see them, and what the arrows reply. Times are µs of the server's clock."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

State = Literal["scheduled", "pending", "claimed", "done", "failed", "dead", "revoked", "expired"]

#: How a claimed job ended: settled (well, by an error, by its worker that was told to revoke it, by one that found it
#: expired), refused for good, neither of both, or sent back by a worker that did not start it. Why may follow, after a
#: blank: "failed ValueError: no such page".
Outcome = str

#: Why a job is among the dead letters.
Reason = Literal["rejected", "max_deliveries", "lost", "unreadable"]


class Delivery(NamedTuple):
    """A job as a worker gets it. *fence* tells this delivery from every other of the same job."""

    job_id: str
    fence: int
    type: str
    deliveries: int
    enqueued_us: int
    message: str
    expires_us: int | None = None
    """When it ends if it has not started; None: never."""


@dataclass
class Job:
    """One published message. *enqueued_us*: when it was published or due, whatever befell it since."""

    id: str
    type: str
    on_demand: bool
    priority: int
    enqueued_us: int
    state: State
    message: str | None
    """None once it has ended."""
    task_id: str = ""
    task_name: str = ""
    expires_us: int | None = None
    """When it ends if it still waits, here or in a worker."""
    stamps: tuple[str, ...] = ()
    """What its message bears, "name:value"."""
    published_us: int | None = None
    """When it was published, if it had to wait for its time."""
    deliveries: int = 0
    """How often it came back, counted."""
    acked: bool = False
    worker: str | None = None
    fence: int | None = None
    claimed_us: int | None = None
    """When its turn came last."""
    started_us: int | None = None
    """When its task started, as its worker said; None until it has."""
    ended_us: int | None = None
    reason: Reason | None = None
    why: str = ""
    """Of one that failed, or of a dead letter: what its worker said of the error."""
    is_listed: bool = True
    """Whether a dead one is among those that are kept: others go when their callers have been told."""
    left: tuple[str, ...] = ()
    """Apps that do not know its task, and leave it to another to tell its caller how it ended."""
    tries: int = 0
    """How often somebody began to tell it."""


@dataclass
class Worker:
    """A live worker. *free*: its free slots when they were last counted; they changed at *free_since_us*."""

    id: str
    name: str
    types: frozenset[str]
    slots: int
    other: int
    """Slots taken by what no claim shows, less those that claims lend while they wait for a rate limit."""
    joined_us: int
    seen_us: int
    app: str = ""
    """What its app.conf says is known for as long as it lives, and a while longer."""
    accepting: bool = True
    """Whether jobs are placed on it."""
    stalled: bool = False
    """Whether its event loop stands still: then none are, whatever `accepting` says."""
    free: int = 0
    free_since_us: int = 0
    claims: dict[str, int] = field(default_factory=dict)
    """Job id -> fencing number, in the order they were granted."""
    inbox: list[Delivery | str] = field(default_factory=list)
    """Claimed jobs and signs that it has not read, the oldest first."""
    sequence: str | None = None
    """The number of its last release ..."""
    granted: list[tuple[str, int]] = field(default_factory=list)
    """... and what that one's reply carried."""


# -- replies. *more*: types of which jobs wait that nobody has looked at any more, since one call may do only so much:
# `claim` goes on. *again*: the arrow itself has more to do.


class Published(NamedTuple):
    """*state*: 0 the id was known already, 1 pending or placed, 2 scheduled, 3 revoked before, or expired, 5 refused.

    Of `ingest` also -1: the message is not next in its list, and 4: it is a dead letter.

    Not *served*: it is pending, and no live worker serves its type. *refused*: for which field.
    """

    state: int
    more: Set[str]
    served: bool
    refused: str | None = None


class Joined(NamedTuple):
    """*namesake*: a live worker that has the same node name. *replaced*: settings that were otherwise so far.

    *void_up_to*: claims with a fencing number up to this are not the worker's.

    *now_us*: what the server's clock says: by it the worker knows whether a job that waits there has expired.
    """

    more: Set[str]
    namesake: str | None
    replaced: list[str]
    void_up_to: int
    now_us: int


class Released(NamedTuple):
    """*deliveries*: the jobs that the caller got for its free slots, if it takes them inline."""

    more: Set[str]
    deliveries: list[Delivery]


class Synced(NamedTuple):
    """Not *known*: join again. *asked*: claims it did not name. *void*: jobs it named that are not its own.

    *revision*: that of the settings in force. *now_us*: as in `Joined`. *returned*: jobs of its that are pending again.
    """

    known: bool
    ticker: bool
    more: Set[str]
    asked: list[tuple[str, int]]
    void: list[str]
    revision: int
    now_us: int
    returned: int


class Beaten(NamedTuple):
    """Not *known*: nothing changed."""

    known: bool
    again: bool
    more: Set[str]


class Recovered(NamedTuple):
    """*recovered*: jobs that came back."""

    again: bool
    recovered: int
    more: Set[str]


class Ticked(NamedTuple):
    """*next_due_us*: until the next scheduled job is due, None if there is none. *untold*: some ends are to be told.

    *lists*: those with messages of stock Celery.
    """

    again: bool
    next_due_us: int | None
    due: int
    recovered: int
    dead_workers: int
    untold: bool
    lists: Sequence[str]
    more: Set[str]


class Ending(NamedTuple):
    """How a job ended without a worker. *how*: "revoked", "expired", or the `Reason` for which it is dead.

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
