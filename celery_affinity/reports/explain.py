"""Explain where a task's job is and why a pending job waits: the answer of ``celery affinity explain``.

For a pending job, the answer has its score, the jobs ahead, the slots that fit, the rules that block it and an estimate
of the wait.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..clock import SECOND_US
from ..policy.score import MICRO
from ..scheduler.reader import Lane, Reader
from ..schema.constants import SILENCE_COUNTS_US, TENANT_PREFIX
from ..schema.values import decode_number, decode_part, decode_text, encode_part, without_mark
from ..settings import wire
from ..settings.wire import complete_settings
from . import key_usage, sentences
from .blockers import OverdueJob, PreemptedJob, StopOrder, last_preempted, overdue_jobs, stop_orders, why_not_preempted
from .blockers import why_reserve_blocks as why_kept_back_by_reserve
from .due import expected_start
from .job_rows import JobRow, read_jobs
from .jobs import Job, LocalWorkers, describe_jobs, local_workers, settings_command
from .key_usage import KeyWait, waiting_for_key, why_keys_block
from .keys import facts_of, stated_keys
from .queue_order import ClaimGroup, ClaimOrder, current_order, jobs_ahead
from .requeues import Requeue, read_requeues, requeues_of
from .stock_messages import StockMessage
from .tenants import ShareTurn, share_turn
from .type_limits import PauseInForce, limits_of_types, paused_types, pauses_of_job


@dataclass(frozen=True)
class ScorePoints:
    """The terms of a score, in points. *slots_that_fit*: divisor of rarity, 0 if no live worker serves the type."""

    priority: float
    age: float
    rarity: float
    on_demand: float
    total: float
    slots_that_fit: int


@dataclass(frozen=True)
class SlotsOfTypes:
    """The slots of the workers that serve exactly *types*. *free* excludes slots of draining workers."""

    types: list[str]
    workers: int
    slots: int
    free: int


@dataclass(frozen=True)
class Blocker:
    """A rule that keeps a job pending. *why*: the reason as text.

    *rule*: "type" (no live worker serves it), "rate limit", "slots", "key", "tenant", "pause", "type limit" or
    "reserve". *is_closed*: True if the type's limit is 0. *pause*: the pause that blocks the job, or None.
    """

    rule: str
    why: str
    is_closed: bool = False
    pause: PauseInForce | None = None


@dataclass(frozen=True)
class StartBound:
    """The Unix time before which a job cannot start, and what happens then, as text."""

    at_s: float
    why: str


@dataclass(frozen=True)
class Waiting:
    """The reasons why a pending job waits.

    - *rank_in_type*, *rank*: the job's position among the jobs of its type, and among all jobs that the fitting slots
      can take, from 1. Paused jobs of other types are not ranked. Jobs blocked by keys are ranked only if this job is
      blocked too.
    - *ahead*: the jobs before it, by type, mode and priority.
    - *blocked_by*: all rules that keep the job pending. Empty if a slot has just become free.
    - *bound_s*: only jobs published less than this time after the job can overtake it, their head starts included.
      None while a rule blocks the job.
    - *passed_until_s*: the Unix time from which no new job can overtake it. None while a rule blocks the job.
    - *estimate_s*: an estimate of the remaining wait from recent run times, or None.
    - *key*: the key that the job waits for, or None. A rate comes before another key.
    - *kept_back*: True if a key blocks the job. Otherwise the job can start while its keys have capacity.
    - *not_before*: the time before which a rule prevents the start: the end of a pause, or of the retry that reserves
      the key.
    - *overdue_since_s*: the Unix time by which a holder of the key would have ended, according to usual run times.
    - *overdue*: jobs that have taken fitting slots far longer than usual.
    - *turn*: the turn of its tenant, if tenants have fair shares. Then overtaking has no bound, and *rank* is by age.
    - *goes_first*: True if the job runs before all others because its tenant is below its minimum.
    - *passing*: number of such jobs of other tenants that run before it and are not in *ahead*.
    """

    score: ScorePoints
    rank_in_type: int
    rank: int
    ahead: list[ClaimGroup]
    slots: list[SlotsOfTypes]
    blocked_by: list[Blocker]
    bound_s: float | None
    passed_until_s: float | None
    estimate_s: float | None
    key: KeyWait | None = None
    kept_back: bool = False
    not_before: StartBound | None = None
    overdue_since_s: float | None = None
    overdue: list[OverdueJob] = field(default_factory=list)
    turn: ShareTurn | None = None
    goes_first: bool = False
    passing: int = 0

    @property
    def is_paused(self) -> bool:
        return any(blocker.rule == "pause" for blocker in self.blocked_by)


@dataclass(frozen=True)
class SlotProfile:
    """The workers that serve exactly *types* (encoded)."""

    id: str
    types: list[str]
    workers: int
    slots: int
    free: int


def profiles_for(reader: Reader, type_: str) -> list[SlotProfile]:
    """Return the profiles that serve *type_* (encoded), the most specialised first."""
    serving = [decode_text(profile) for profile in reader.ask_one("zrange", reader.key("serving", type_), 0, -1)]
    types, workers, slots, free = (
        reader.fields(name, serving) for name in ("profiles", "members", "slots", "free_slots")
    )
    return [
        SlotProfile(
            profile, types[profile].split(), *(decode_number(field.get(profile)) for field in (workers, slots, free))
        )
        for profile in serving
        if profile in types
    ]


def waiting_for_slots(
    reader: Reader,
    order: ClaimOrder,
    lane: Lane,
    lanes: Sequence[Lane],
    profiles: Sequence[SlotProfile],
    *,
    kept_back: bool,
) -> Waiting:
    """Return the reasons, except the job's own key."""
    groups = jobs_ahead(reader, order, lanes, order.place(lane, lane.rank_us, lane.job_id))
    before = [group for group in groups if kept_back or not group.kept_back]
    bound_s = wire.overtaking_seconds(lane.priority, lane.on_demand, order.weights, bonus=order.bonus)
    bound_s += (order.head_us - lane.head_us) / SECOND_US
    type_ = decode_part(lane.type)
    slots = [
        SlotsOfTypes(
            [decode_part(without_mark(marked)) for marked in profile.types],
            profile.workers,
            profile.slots,
            profile.free,
        )
        for profile in profiles
    ]
    blocked_by = _blocked_by(type_, slots, withdrawn=reader.capacity([lane.type]).get(lane.type, 0))
    is_full = any(blocker.rule == "slots" for blocker in blocked_by)
    overdue = overdue_jobs(reader, [profile.id for profile in profiles], order.now_us) if is_full else []
    return Waiting(
        score=_points(order, lane),
        rank_in_type=1 + sum(group.jobs for group in before if group.type == type_),
        rank=1 + sum(group.jobs for group in before),
        ahead=groups,
        slots=slots,
        blocked_by=[replace(blocker, why=blocker.why + sentences.overdue_sentence(overdue)) for blocker in blocked_by],
        bound_s=bound_s,
        passed_until_s=(lane.rank_us + lane.head_us) / SECOND_US + bound_s,
        estimate_s=_estimate_s(reader, lane.type, before, profiles, overdue=len(overdue)),
        overdue=overdue,
    )


def _points(order: ClaimOrder, lane: Lane) -> ScorePoints:
    terms = order.terms(lane, lane.rank_us)
    fits = order.fits.get(lane.type, 0)
    rarity = terms.rarity if fits else 0
    return ScorePoints(
        priority=terms.priority / MICRO,
        age=terms.age / MICRO,
        rarity=rarity / MICRO,
        on_demand=terms.on_demand / MICRO,
        total=(terms.total - terms.rarity + rarity) / MICRO,
        slots_that_fit=fits,
    )


def _blocked_by(type_: str, slots: Sequence[SlotsOfTypes], withdrawn: int) -> list[Blocker]:
    """Return the blockers of a job, except its key.

    *withdrawn*: slots of live workers that currently claim no jobs of the type.
    """
    total = sum(group.slots for group in slots)
    if not total and withdrawn:
        return [Blocker("rate limit", sentences.LIMITED_IN_WORKERS)]
    if not total:
        return [Blocker("type", sentences.unserved_sentence(type_))]
    return [] if any(group.free for group in slots) else [Blocker("slots", sentences.all_busy_sentence(total))]


def _estimate_s(
    reader: Reader, type_: str, groups: Sequence[ClaimGroup], profiles: Sequence[SlotProfile], *, overdue: int
) -> float | None:
    """Return (work ahead + one job of the type) / slots, in seconds, or None without a duration or a slot.

    Slots with *overdue* jobs are excluded, because their end cannot be estimated. Work is jobs * the moving average of
    their type's slot time. Jobs of another type contribute only the share of its slots that also serve *type_*
    (encoded), because the other slots take the rest.
    """
    types = sorted({type_, *(encode_part(group.type) for group in groups)})
    durations = reader.fields("durations", types)
    usual_s_by_type = {name: decode_number(value) / SECOND_US for name, value in durations.items()}
    capacity = reader.capacity(types)
    slots = sum(profile.slots for profile in profiles) - overdue
    if not usual_s_by_type or slots <= 0:
        return None
    usual_s = sum(usual_s_by_type.values()) / len(usual_s_by_type)
    work_s = usual_s_by_type.get(type_, usual_s)
    for group in groups:
        name = encode_part(group.type)
        shared = sum(profile.slots for profile in profiles if name in profile.types)
        work_s += group.jobs * usual_s_by_type.get(name, usual_s) * shared / max(1, shared, capacity.get(name, shared))
    return work_s / slots


#: Rules that block a job before its key does.
_BEFORE_KEYS = ("pause", "type limit")


def waiting_reasons(reader: Reader, lane: Lane, rules: str, now_us: int, settings: Mapping[str, str]) -> Waiting | None:
    """Return the reasons why a job waits, or None if it is no longer pending.

    *lane*: the job's lane, with the job as head. *rules*: the field of the job hash.
    """
    stated = stated_keys(rules)
    waiting = _with_keys(reader, lane, [key.key for key in stated], now_us, settings)
    if waiting is None:
        return waiting
    key = stated[-1].key if stated and stated[-1].is_of_tenant else TENANT_PREFIX
    types = [encode_part(type_) for slots in waiting.slots for type_ in slots.types]
    turn = share_turn(reader, key, lane, types)
    return waiting if turn is None else replace(waiting, turn=turn, bound_s=None, passed_until_s=None)


def _with_keys(reader: Reader, lane: Lane, keys: list[str], now_us: int, settings: Mapping[str, str]) -> Waiting | None:
    """Return the same as `waiting_reasons`, without the turns of tenants. *keys*: the job's keys, encoded."""
    sublanes = {key: facts.sublanes for key, facts in facts_of(reader, keys).items()}
    profiles = profiles_for(reader, lane.type)
    candidates = sorted({lane.type, *(type_ for profile in profiles for type_ in profile.types)})
    types_of_keys = {sublane.type for lanes in sublanes.values() for sublane in lanes}
    order = current_order(reader, sorted({*candidates, *types_of_keys}), now_us, settings)
    competing = sorted({*candidates} - (paused_types(reader) - {lane.type}))
    lanes = [*reader.lanes(competing), *reader.kept_lanes(competing)]
    own_lanes = [lane, lane._replace(is_kept_back=True)]
    is_admitted, kept_back = (
        score is not None
        for score in reader.ask([("zscore", reader.lane_key(own_lane), own_lane.job_id) for own_lane in own_lanes])
    )
    if not (is_admitted or kept_back):
        return None
    with_minimums = _after_first(
        reader, order, lane, competing, waiting_for_slots(reader, order, lane, lanes, profiles, kept_back=kept_back)
    )
    with_reserve = _reserved(reader, lane, settings, with_minimums)
    waiting = _held_back(reader, lane.type, keys, with_reserve)
    if not keys:
        return waiting
    if not kept_back:
        return replace(waiting, key=waiting_for_key(reader, order, keys[-1], sublanes[keys[-1]], lane))
    waits_for = keys[_passed(lane, list(sublanes.values())) :] or keys[-1:]
    key, *later = [waiting_for_key(reader, order, name, sublanes[name], lane) for name in waits_for]
    if key.key.tenant is not None and key.key.limit is None:
        return replace(waiting, key=key)  # jobs of its tenant run before it, as in their lane
    is_paused = bool(pauses_of_job(reader, lane.type, waits_for[:1], of="key"))
    why = [] if is_paused and key.key.has_room else [why_keys_block(reader, key, sublanes[waits_for[0]], lane)]
    why += [why_keys_block(reader, wait, (), lane) for wait in later if not wait.key.has_room]
    blocks = [Blocker("key" if key.key.tenant is None else "tenant", reason) for reason in why]
    return replace(
        waiting,
        key=key,
        kept_back=True,
        blocked_by=sorted([*blocks, *waiting.blocked_by], key=lambda blocker: blocker.rule not in _BEFORE_KEYS),
        bound_s=None,
        passed_until_s=None,
        estimate_s=None if waiting.is_paused else key.estimate_s,
        not_before=waiting.not_before if waiting.is_paused else _time_of_retry(key),
        overdue_since_s=key.overdue_since_s,
    )


def _passed(lane: Lane, sublanes: Sequence[Sequence[Lane]]) -> int:
    """Return the number of its keys that admit the job of *lane*. It waits for the next one. *sublanes*: per key."""
    own = (lane.type, lane.name, lane.job_id)
    is_admitted = [own in ((sublane.type, sublane.name, sublane.job_id) for sublane in of_key) for of_key in sublanes]
    return (*is_admitted, False).index(False)


def _time_of_retry(key: KeyWait) -> StartBound | None:
    """Return when the retry that reserves the key is due, or None if there is none or it is already due."""
    due_s = key.key.kept_until_s
    return None if due_s is None else StartBound(due_s, f"the retry of {key.key.kept_for} is due then")


def _end_of_pauses(pauses: Sequence[PauseInForce]) -> StartBound | None:
    """Return when the last of *pauses* ends, or None if one of them has no end."""
    ends = [(pause.until, str(pause)) for pause in pauses if pause.until is not None]
    if not ends or len(ends) < len(pauses):
        return None
    until_s, text = max(ends)
    return StartBound(until_s, f"the pause of {text} ends then")


def _reserved(reader: Reader, lane: Lane, settings: Mapping[str, str], waiting: Waiting) -> Waiting:
    """Return *waiting* with the reserve that blocks the first job of *lane*, if any."""
    live, free = (sum(getattr(group, name) for group in waiting.slots) for name in ("slots", "free"))
    blocking = why_kept_back_by_reserve(reader, settings, lane, live, free)
    patience_s = int(settings["reserve_patience_us"]) / SECOND_US
    if blocking is None or waiting.bound_s is None:
        return waiting
    why, kept = blocking
    bound_s = None
    if patience_s:
        bound_s = max(waiting.bound_s, patience_s + int(settings["heartbeat_interval_us"]) / SECOND_US)
    return replace(
        waiting,
        blocked_by=[Blocker("reserve", why), *waiting.blocked_by],
        bound_s=bound_s,
        passed_until_s=None if bound_s is None else (lane.rank_us + lane.head_us) / SECOND_US + bound_s,
        estimate_s=None if waiting.estimate_s is None else waiting.estimate_s * live / max(1, live - kept),
    )


def _held_back(reader: Reader, type_: str, keys: Sequence[str], waiting: Waiting) -> Waiting:
    """Return *waiting* with the pauses and limits that block a job of *type_* with *keys* (all encoded)."""
    pauses = pauses_of_job(reader, type_, keys)
    blocks = [Blocker("pause", sentences.pause_sentence(pause), pause=pause) for pause in pauses]
    limits = limits_of_types(reader, [type_])
    blocks += [
        Blocker("type limit", limit.why, is_closed=not limit.limit)
        for limit in limits
        if limit.counting or not limit.room
    ]
    slots = sum(group.slots for group in waiting.slots)
    estimate_s = waiting.estimate_s
    for limit in limits:  # more slots than the limit do not help
        estimate_s = estimate_s * max(1.0, slots / limit.limit) if estimate_s is not None and limit.limit else None
    if not blocks:
        return replace(waiting, estimate_s=estimate_s)
    return replace(
        waiting,
        blocked_by=[*blocks, *waiting.blocked_by],
        bound_s=None,
        passed_until_s=None,
        estimate_s=None if pauses else estimate_s,
        not_before=_end_of_pauses(pauses),
    )


def _after_first(reader: Reader, order: ClaimOrder, lane: Lane, types: Sequence[str], waiting: Waiting) -> Waiting:
    """Return *waiting*, adjusted for jobs of *types* (encoded) whose tenants are below their minimum."""
    if not reader.first_lanes(types):
        return waiting
    if key_usage.is_below_minimum(reader, lane):
        groups = key_usage.minimum_jobs_ahead(reader, order, types, lane)
        return replace(
            waiting,
            rank_in_type=1 + sum(group.jobs for group in groups if group.type == decode_part(lane.type)),
            rank=1 + sum(group.jobs for group in groups),
            ahead=groups,
            goes_first=True,
            bound_s=None,
            passed_until_s=None,
        )
    passing = key_usage.minimum_jobs_passing(reader, order, types, lane)
    return replace(
        waiting,
        rank_in_type=waiting.rank_in_type + passing[lane.type],
        rank=waiting.rank + passing.total(),
        passing=passing.total(),
        bound_s=None,
        passed_until_s=None,
    )


#: Maximum number of attempts to read a job that changes its state.
_MAX_ATTEMPTS = 5


@dataclass(frozen=True)
class Explanation(Job):
    """The facts of a task's newest job, and the reasons why it waits.

    *since_s*, the time of the last state change, and *now_s*, the time of this answer, are Unix times by the server's
    clock. They are None if the state is "unknown".

    - *waiting*: why a pending job waits.
    - *near*: the workers that hold the hint of a waiting job.
    - *stopped*: the job's last preemption for a tenant below its minimum.
    - *stops*: the eviction of a running job; for a pending job, the evictions for its tenant and type.
    - *why_no_stop*: why there are none although its tenant is below its minimum and the job has waited long enough.
    - *left_workers*: when and why the job left workers unfinished, the newest first. Kept for a day.
    - *head_start_s*: seconds by which the job ranks before its enqueue time, because of its due time; or None.
    - *expected_start_s*: Unix time at which a waiting job with an own due time is expected to start, or None.
    - *why_late*: why it is expected to start late, or None.
    - *in_list*: the stock Celery list that has the message of a task without a job.
    """

    since_s: float | None = None
    now_s: float | None = None
    waiting: Waiting | None = None
    stopped: PreemptedJob | None = None
    stops: list[StopOrder] = field(default_factory=list)
    near: LocalWorkers | None = None
    why_no_stop: str | None = None
    left_workers: list[Requeue] = field(default_factory=list)
    head_start_s: float | None = None
    expected_start_s: float | None = None
    why_late: str | None = None
    in_list: StockMessage | None = None


def explain(reader: Reader, task_id: str) -> Explanation:
    """Return the place of the newest job of *task_id* and, for a pending job, the reasons why it waits."""
    (ids,) = reader.jobs_of([task_id])
    for _ in range(_MAX_ATTEMPTS):
        explanation = _explain_job(reader, ids) if ids else None
        if explanation:
            return explanation
    note = "never published here, or forgotten (`affinity_keep` after its end): the result backend may know it"
    return Explanation(task_id, "unknown", note=note, left_workers=requeues_of(read_requeues(reader), [task_id]))


def _explain_job(reader: Reader, ids: Sequence[str]) -> Explanation | None:
    """Return the explanation of the last of *ids*, or None if that job changed its state or was deleted."""
    (row,) = read_jobs(reader, ids[-1:])
    described = describe_jobs(reader, [row], reader.ask_one(*settings_command(reader)), {row.job_id: list(ids[:-1])})
    if not described:
        return None
    ((job, run, claim),) = described
    now_us = reader.now_us()
    since_us, note, waiting, local = run.enqueued_us, job.note, None, None
    settings = complete_settings(reader.hash("settings"))
    if job.state == "scheduled":
        since_us = since_us if run.patient_us is not None else run.published_us or since_us
        note = _why_scheduled(reader, run, now_us)
    elif claim is not None:
        since_us = claim.since_us
    elif job.has_ended:
        since_us = run.ended_us
    elif job.state == "pending":
        waiting = waiting_reasons(reader, run.lane, run.rules, now_us, settings)
        if waiting is None:
            return None
        if job.hint is not None:
            local = local_workers(reader, job.hint, now_us, settings)
    if job.calls > 1:
        merged = f"merged with {job.calls - 1} other call(s) of {job.merge_key!r}"
        note = f"{merged}; {note}" if note else merged
    facts = {**vars(job), "note": note}
    orders = stop_orders(reader, run, now_us) if run.rules and run.state in ("pending", "claimed") else []
    is_due = waiting is not None and waiting.goes_first and not waiting.kept_back
    is_due = is_due and now_us - run.lane.rank_us - run.lane.head_us >= int(settings["preemption_delay_us"])
    expected_s, why_late = expected_start(reader, run.job_id) if run.due.due_us is not None else (None, None)
    return Explanation(
        **facts,
        head_start_s=run.lane.head_us / SECOND_US or None,
        expected_start_s=expected_s,
        why_late=why_late,
        since_s=since_us / SECOND_US,
        now_s=now_us / SECOND_US,
        waiting=waiting,
        near=local,
        stopped=last_preempted(reader, run.job_id, int(settings["preemption_max"])),
        stops=orders,
        why_no_stop=why_not_preempted(reader) if is_due and not orders else None,
        left_workers=requeues_of(read_requeues(reader), {job.id, run.job_id}),
    )


def _why_scheduled(reader: Reader, run: JobRow, now_us: int) -> str | None:
    """Return as text that no dispatcher ticks, or the pause of a job that was requeued or aborted, or None."""
    if now_us - decode_number(reader.hash("clock").get("ticked")) > SILENCE_COUNTS_US:
        return sentences.NO_TICKS
    if run.paused_until_us is None:
        return None
    return sentences.requeue_pause_sentence(run.requeues, run.deliveries, (run.paused_until_us - now_us) / SECOND_US)
