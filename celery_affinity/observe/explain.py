"""Where a job is, and why it waits: what ``celery affinity explain`` and `explain` answer. Nothing here writes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from redis.exceptions import NoPermissionError

from ..rules import overtaking
from ..rules.keys import decode, encode, unmarked
from ..rules.rows import number_of, text_of, why_of
from ..rules.score import MICRO
from ..rules.settings import complete, weights
from ..server.reader import Lane, Reader
from .claim_order import Group, Order, ahead, order_now

#: A job that its worker has read and not yet spoken of counts as running for so many beats.
_BEATS_UNTIL_HELD = 2

#: A dispatcher that has not ticked for so long is missed, s.
_TICKS_MISSED_S = 3

#: How often a job is looked for that moves while it is read.
_TRIES = 5


#: What the rest of a spoiled row is shown with.
_UNKNOWN = dict.fromkeys(
    ("state", "type", "lane", "name", "enqueued", "deliveries", "claimed", "fence", "worker", "ended"), ""
)


@dataclass(frozen=True)
class Points:
    """The terms of a score, in points. *slots_that_fit*: what rarity was divided by; 0 if no live worker serves."""

    priority: float
    age: float
    rarity: float
    on_demand: float
    total: float
    slots_that_fit: int


@dataclass(frozen=True)
class Slots:
    """The slots of the workers that serve just *types*. *free* may be less than idle: a draining worker has none."""

    types: list[str]
    workers: int
    slots: int
    free: int

    @property
    def busy(self) -> int:
        return self.slots - self.free


@dataclass(frozen=True)
class Waiting:
    """Why a pending job waits.

    *rank_in_type*, *rank*: its place among the jobs of its type, and among all that its slots could take; 1 is next.
    *ahead*: the jobs before it, by type, mode and priority. *bound_s*: only jobs published less than that after it can
    pass it; from *passed_until_s* (Unix time) on, no new one can. *estimate_s*: a guess at the wait to come, from how
    long jobs held their slots lately; None if nothing is known.
    """

    score: Points
    rank_in_type: int
    rank: int
    ahead: list[Group]
    slots: list[Slots]
    blocked_by: str
    bound_s: float
    passed_until_s: float
    estimate_s: float | None


@dataclass(frozen=True)
class Explanation:
    """Where a task's newest job is.

    *state*: "scheduled", "pending", "claimed", "running", "done", "failed", "dead", "revoked", "expired", or "unknown",
    of which nothing else is known. *reason*: why it is dead, one of `letters.REASONS`. *why*: of one that failed or is
    dead, the type of the exception and the first 200 characters of what it says, if a worker said so.
    *since_s*: since when, *now_s*: when it was looked at, both Unix time by the server's clock. *priority*: 0..10, 10
    highest. *due_s*: Unix time of its ETA. *deliveries*: how often it came back from a worker that died. *other_jobs*:
    the same task's other jobs that have not ended (copies for other queues, a try before a retry).
    """

    task_id: str
    state: str
    since_s: float | None = None
    now_s: float | None = None
    job_id: str | None = None
    task: str | None = None
    type: str | None = None
    on_demand: bool = False
    priority: int = 0
    deliveries: int = 0
    due_s: float | None = None
    worker: str | None = None
    reason: str | None = None
    why: str | None = None
    note: str | None = None
    other_jobs: list[str] = field(default_factory=list)
    waiting: Waiting | None = None


def explain(reader: Reader, task_id: str) -> Explanation:
    """Return where the newest job of *task_id* is, and why it waits if it does."""
    (ids,) = reader.jobs_of([task_id])
    for _ in range(_TRIES):
        found = _explain_job(reader, task_id, ids) if ids else None
        if found:
            return found
    return Explanation(
        task_id, "unknown", note="never published here, or ended over a minute ago: the result backend may know it"
    )


def _explain_job(reader: Reader, task_id: str, ids: Sequence[str]) -> Explanation | None:
    """Return None if the job moved meanwhile, or is forgotten."""
    row = {**_UNKNOWN, **reader.hash("job", ids[-1])}
    if not row["state"]:
        return None
    now_us = reader.now_us()
    settings = complete(reader.hash("settings"))
    lane = Lane(number_of(row["enqueued"]), ids[-1], row["type"], row["lane"])
    state, since_us, note = row["state"], row["enqueued"], None
    if state == "scheduled":
        since_us, note = row.get("published", since_us), _missed_ticks(reader, now_us)
    elif state == "claimed":
        state, since_us, note = _held(reader, row, ids[-1], now_us, settings)
    elif state in ("done", "failed", "dead", "revoked", "expired"):
        since_us = row["ended"]
    waiting = _waiting(reader, lane, now_us, settings) if state == "pending" else None
    if state == "pending" and waiting is None:
        return None
    worker = reader.ask_one("hget", reader.key("worker", row["worker"]), "name") if row["worker"] else None
    return Explanation(
        task_id=task_id,
        state=state,
        since_s=number_of(since_us) / MICRO,
        now_s=now_us / MICRO,
        job_id=ids[-1],
        task=row["name"],
        type=decode(row["type"]),
        on_demand=lane.on_demand,
        priority=weights(settings).read(lane.priority),
        deliveries=number_of(row["deliveries"]),
        due_s=lane.enqueued_us / MICRO if "published" in row else None,
        worker=decode(text_of(worker)) if worker else None,
        reason=row.get("reason"),
        why=why_of(row),
        note=note,
        other_jobs=list(ids[:-1]),
        waiting=waiting,
    )


def _held(
    reader: Reader, row: Mapping[str, str], job_id: str, now_us: int, settings: Mapping[str, str]
) -> tuple[str, str, str | None]:
    """Return state, since when (µs) and a note, of a claimed job: its worker says at each beat what has started."""
    if "started" in row:
        return "running", row["started"], None
    if row.get("acked") == "1":
        return "running", row["claimed"], None
    facts = f"{job_id} {row['fence']} ".encode()
    try:
        inbox = reader.ask_one("lrange", reader.key("inbox", row["worker"]), 0, -1)
    except NoPermissionError:  # who may not read messages may not read inboxes
        return "claimed", row["claimed"], "whether its worker has read it is not for this user: no right to inboxes"
    if any(payload.startswith(facts) for payload in inbox):
        return "claimed", row["claimed"], "in the worker's inbox, which it has not read yet"
    if now_us - number_of(row["claimed"]) > _BEATS_UNTIL_HELD * int(settings["heartbeat_interval_us"]):
        return "claimed", row["claimed"], "its worker has it and has not started it: a rate limit, or a full pool"
    return "running", row["claimed"], None


def _missed_ticks(reader: Reader, now_us: int) -> str | None:
    ticked_us = number_of(reader.hash("clock").get("ticked"))
    if now_us - ticked_us > _TICKS_MISSED_S * MICRO:
        return "no dispatcher ticks: start a worker, or `celery affinity dispatcher`"
    return None


# -- a pending job


@dataclass(frozen=True)
class _Fleet:
    """Who could take the jobs that are to be compared. Types are encoded; profiles by their name."""

    types: dict[str, list[str]]
    workers: dict[str, int]
    slots: dict[str, int]
    free: dict[str, int]

    def serving(self, type_: str) -> list[str]:
        return [profile for profile, types in self.types.items() if type_ in types]


def _waiting(reader: Reader, lane: Lane, now_us: int, settings: Mapping[str, str]) -> Waiting | None:
    fleet = _fleet_for(reader, lane.type)
    candidates = sorted({lane.type, *(type_ for types in fleet.types.values() for type_ in types)})
    order = order_now(reader, candidates, now_us, settings)
    lanes = reader.lanes(candidates)
    if reader.ask_one("zscore", reader.lane_key(lane), lane.job_id) is None:
        return None
    mine = order.place(lane, lane.enqueued_us, lane.job_id)
    groups = ahead(reader, order, lanes, mine)
    bound_s = overtaking.seconds(lane.priority, lane.on_demand, order.weights)
    type_ = decode(lane.type)
    slots = [
        Slots(
            [decode(unmarked(each)) for each in types],
            fleet.workers[profile],
            fleet.slots[profile],
            fleet.free[profile],
        )
        for profile, types in fleet.types.items()
    ]
    return Waiting(
        score=_points(order, lane),
        rank_in_type=1 + sum(group.jobs for group in groups if group.type == type_),
        rank=1 + sum(group.jobs for group in groups),
        ahead=groups,
        slots=slots,
        blocked_by=_blocked_by(type_, slots, withdrawn=reader.capacity([lane.type]).get(lane.type, 0)),
        bound_s=bound_s,
        passed_until_s=lane.enqueued_us / MICRO + bound_s,
        estimate_s=_estimate_s(reader, lane.type, groups, fleet),
    )


def _points(order: Order, lane: Lane) -> Points:
    terms = order.terms(lane, lane.enqueued_us)
    fits = order.fits.get(lane.type, 0)
    rarity = terms.rarity if fits else 0
    return Points(
        priority=terms.priority / MICRO,
        age=terms.age / MICRO,
        rarity=rarity / MICRO,
        on_demand=terms.on_demand / MICRO,
        total=(terms.total - terms.rarity + rarity) / MICRO,
        slots_that_fit=fits,
    )


def _fleet_for(reader: Reader, type_: str) -> _Fleet:
    """Return the profiles that serve *type_*, the most specialised first, and their slots."""
    serving = [text_of(profile) for profile in reader.ask_one("zrange", reader.key("serving", type_), 0, -1)]
    types, workers, slots, free = (
        reader.fields(name, serving) for name in ("profiles", "members", "slots", "free_slots")
    )
    return _Fleet(
        {profile: types[profile].split() for profile in serving if profile in types},
        {profile: number_of(workers.get(profile)) for profile in serving},
        {profile: number_of(slots.get(profile)) for profile in serving},
        {profile: number_of(free.get(profile)) for profile in serving},
    )


def _blocked_by(type_: str, slots: Sequence[Slots], withdrawn: int) -> str:
    """*withdrawn*: the slots of live workers, if all of these take none of the type for a moment."""
    total, free = (sum(getattr(each, name) for each in slots) for name in ("slots", "free"))
    if not total and withdrawn:
        return "a rate limit: enough jobs wait for it in the workers that serve the type"
    if not total:
        return f"no live worker serves type {type_!r}: start one with -Q {type_}"
    if free:
        return "nothing: a slot has just become free"
    return "its slot is busy" if total == 1 else f"all {total} slots that fit are busy, or of workers that drain"


def _estimate_s(reader: Reader, type_: str, groups: Sequence[Group], fleet: _Fleet) -> float | None:
    """Return (work ahead + one job of its own) / slots, in seconds.

    Work is jobs * the moving average of their type's time in a slot. Of another type's jobs only that share counts
    which its slots have in common with ours: the rest goes elsewhere.
    """
    types = sorted({type_, *(encode(group.type) for group in groups)})
    known = {name: number_of(value) / MICRO for name, value in reader.fields("durations", types).items()}
    capacity = reader.capacity(types)
    ours = sum(fleet.slots.values())
    if not known or not ours:
        return None
    usual_s = sum(known.values()) / len(known)
    work_s = known.get(type_, usual_s)
    for group in groups:
        name = encode(group.type)
        shared = sum(fleet.slots[profile] for profile in fleet.serving(name))
        work_s += group.jobs * known.get(name, usual_s) * shared / max(1, shared, capacity.get(name, shared))
    return work_s / ours
