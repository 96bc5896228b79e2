"""What is said of a pending job: its score, the jobs before it, slots that fit, rules that keep it back, a guess.

`why_it_waits` finds it out.

How long a pending job waits for a slot, rules aside: score, jobs ahead, slots that fit, and a guess at the wait.

The reasons why a pending job waits: what it waits for among the slots, and each rule that keeps it back.

The place of a task's job: the answer of ``celery affinity explain`` and of `celery_affinity.explain`.

The reasons why a pending job waits are in `waiting`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..clock import SECOND_US
from ..policy.score import MICRO
from ..scheduler.reader import Command, Lane, Reader
from ..schema.constants import SILENCE_COUNTS_US
from ..schema.keys import StockLists
from ..schema.values import decode_number, decode_part, decode_text, encode_part, without_mark
from ..settings import wire
from ..settings.wire import complete_settings
from . import key_usage, sentences
from .blockers import OverdueJob, PreemptedJob, StopOrder, last_preempted, overdue_jobs, stop_orders, why_not_preempted
from .blockers import why_reserve_blocks as why_kept_back_by_reserve
from .job_rows import JobRow, read_jobs
from .jobs import Job, LocalWorkers, local_workers, settings_command, with_runs
from .key_usage import KeyWait, waiting_for_key, why_keys_block
from .keys import facts_of, stated_keys
from .queue_order import ClaimGroup, ClaimOrder, current_order, jobs_ahead
from .stock_messages import StockMessage
from .tenants import ShareTurn, share_turn
from .type_limits import PauseInForce, limits_of_types, paused_types, pauses_of_job


@dataclass(frozen=True)
class ScorePoints:
    """The terms of a score, in points. *slots_that_fit*: the divisor of rarity; 0 if no live worker serves the type."""

    priority: float
    age: float
    rarity: float
    on_demand: float
    total: float
    slots_that_fit: int


@dataclass(frozen=True)
class SlotsOfTypes:
    """The slots of the workers that serve exactly *types*. *free* leaves out a draining worker, even an idle one."""

    types: list[str]
    workers: int
    slots: int
    free: int


@dataclass(frozen=True)
class Blocker:
    """A rule that keeps a job pending. *why*: the reason in words.

    *rule*: "type" (no live worker serves it), "rate limit", "slots", "key", "tenant", "pause", "type limit" or
    "reserve".
    *is_closed*: the limit of the type is 0.
    """

    rule: str
    why: str
    is_closed: bool = False


@dataclass(frozen=True)
class StartBound:
    """The Unix time before which a job cannot start, and what happens then, in words."""

    at_s: float
    why: str


@dataclass(frozen=True)
class Waiting:
    """The reasons why a pending job waits.

    *rank_in_type*, *rank*: the job's place among the jobs of its type, and among all jobs that the fitting slots could
    take; 1 is next. Jobs of other types that are paused have no place, nor have jobs that keys keep back, unless this
    job is one of them. *ahead*: the jobs before it, by type, mode and priority. *blocked_by*: all rules that keep the
    job pending; empty if a slot has just become free. *bound_s*: only jobs that are published less than this time after
    the job can pass it; no new job can pass it from *passed_until_s* (Unix time) on. Both are None while a rule keeps
    the job back. *estimate_s*: an estimate of the remaining wait, from recent run times; None if nothing is known.
    *not_before*: the time before which the job cannot start, if a rule has one: the end of a pause, or the time of the
    retry that its key is kept for. *overdue_since_s*: the Unix time by which a job that holds the key would have ended,
    going by usual run times. *key*: the key that the job waits for, of two the rate first; None for a job without a
    key. *kept_back*: whether a key keeps the job back; if not, the job may start while its keys have room. *overdue*:
    jobs that have taken slots that fit for far longer than usual. *turn*: that of its tenant, if tenants go by shares:
    then nothing bounds how many jobs pass this one, and *rank* is by age. *goes_first*: whether it goes before all
    others, since its tenant has less than its minimum; *passing*: number of such jobs of other tenants that go before
    it, and are not in *ahead*.
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
        return any(each.rule == "pause" for each in self.blocked_by)


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
            profile,
            types[profile].split(),
            *(decode_number(found.get(profile)) for found in (workers, slots, free)),
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
    """Return the reasons without those of the job's own key."""
    groups = jobs_ahead(reader, order, lanes, order.place(lane, lane.enqueued_us, lane.job_id))
    before = [group for group in groups if kept_back or not group.kept_back]
    bound_s = wire.overtaking_seconds(lane.priority, lane.on_demand, order.weights, bonus=order.bonus)
    type_ = decode_part(lane.type)
    slots = [
        SlotsOfTypes([decode_part(without_mark(of)) for of in each.types], each.workers, each.slots, each.free)
        for each in profiles
    ]
    blocked_by = _blocked_by(type_, slots, withdrawn=reader.capacity([lane.type]).get(lane.type, 0))
    is_full = any(each.rule == "slots" for each in blocked_by)
    overdue = overdue_jobs(reader, [each.id for each in profiles], order.now_us) if is_full else []
    return Waiting(
        score=_points(order, lane),
        rank_in_type=1 + sum(group.jobs for group in before if group.type == type_),
        rank=1 + sum(group.jobs for group in before),
        ahead=groups,
        slots=slots,
        blocked_by=[Blocker(each.rule, each.why + sentences.overdue_sentence(overdue)) for each in blocked_by],
        bound_s=bound_s,
        passed_until_s=lane.enqueued_us / SECOND_US + bound_s,
        estimate_s=_estimate_s(reader, lane.type, before, profiles, overdue=len(overdue)),
        overdue=overdue,
    )


def _points(order: ClaimOrder, lane: Lane) -> ScorePoints:
    terms = order.terms(lane, lane.enqueued_us)
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
    """Return the obstacles before the job, but for its key.

    *withdrawn*: slots of live workers that take no job of the type just now.
    """
    total, free = (sum(getattr(each, name) for each in slots) for name in ("slots", "free"))
    if not total and withdrawn:
        return [Blocker("rate limit", sentences.LIMITED_IN_WORKERS)]
    if not total:
        return [Blocker("type", sentences.unserved_sentence(type_))]
    if free:
        return []
    return [Blocker("slots", sentences.all_busy_sentence(total))]


def _estimate_s(
    reader: Reader, type_: str, groups: Sequence[ClaimGroup], profiles: Sequence[SlotProfile], *, overdue: int
) -> float | None:
    """Return (work ahead + one job of the type) / slots, in seconds; None if no duration or no slot is known.

    Slots whose jobs are *overdue* do not count: nobody knows when they are free.

    Work is jobs * the moving average of their type's time in a slot. The jobs of another type count only by the share
    of its slots that could take *type_* (encoded) too: the rest goes elsewhere.
    """
    types = sorted({type_, *(encode_part(group.type) for group in groups)})
    known = {name: decode_number(value) / SECOND_US for name, value in reader.fields("durations", types).items()}
    capacity = reader.capacity(types)
    ours = sum(each.slots for each in profiles) - overdue
    if not known or ours <= 0:
        return None
    usual_s = sum(known.values()) / len(known)
    work_s = known.get(type_, usual_s)
    for group in groups:
        name = encode_part(group.type)
        shared = sum(each.slots for each in profiles if name in each.types)
        work_s += group.jobs * known.get(name, usual_s) * shared / max(1, shared, capacity.get(name, shared))
    return work_s / ours


#: Rules that a job meets before its key.
_BEFORE_KEYS = ("pause", "type limit")


def waiting_reasons(reader: Reader, lane: Lane, rules: str, now_us: int, settings: Mapping[str, str]) -> Waiting | None:
    """Return the reasons why a job waits; None if it is pending no longer.

    *lane*: the job's, with the job as head. *rules*: the field of its row.
    """
    stated = stated_keys(rules)
    waited = _with_keys(reader, lane, [each.key for each in stated], now_us, settings)
    if waited is None or not stated or not stated[-1].is_of_tenant:
        return waited
    turn = share_turn(reader, stated[-1].key, lane)
    return waited if turn is None else replace(waited, turn=turn, bound_s=None, passed_until_s=None)


def _with_keys(reader: Reader, lane: Lane, keys: list[str], now_us: int, settings: Mapping[str, str]) -> Waiting | None:
    """Return what `waiting_of` does, without turns of tenants. *keys*: those of the job, encoded."""
    sublanes = {key: facts.sublanes for key, facts in facts_of(reader, keys).items()}
    profiles = profiles_for(reader, lane.type)
    candidates = sorted({lane.type, *(type_ for each in profiles for type_ in each.types)})
    types_of_keys = {each.type for lanes in sublanes.values() for each in lanes}
    order = current_order(reader, sorted({*candidates, *types_of_keys}), now_us, settings)
    competing = sorted({*candidates} - (paused_types(reader) - {lane.type}))
    lanes = [*reader.lanes(competing), *reader.kept_lanes(competing)]
    places = [lane, lane._replace(is_kept_back=True)]
    stands, kept_back = (at is not None for at in reader.ask([_place_in(reader, each) for each in places]))
    if not (stands or kept_back):
        return None
    waited_for_slots = _after_first(
        reader, order, lane, competing, waiting_for_slots(reader, order, lane, lanes, profiles, kept_back=kept_back)
    )
    waited_for_others = _reserved(reader, lane, settings, waited_for_slots)
    waited = _held_back(reader, lane.type, keys, waited_for_others)
    if not keys:
        return waited
    if not kept_back:
        return replace(waited, key=waiting_for_key(reader, order, keys[-1], sublanes[keys[-1]], lane))
    waits_for = keys[_passed(lane, list(sublanes.values())) :] or keys[-1:]
    key, *later = [waiting_for_key(reader, order, each, sublanes[each], lane) for each in waits_for]
    if key.key.tenant is not None and key.key.limit is None:
        return replace(waited, key=key)  # jobs of its tenant go before it, as they would in their lane
    is_paused = bool(pauses_of_job(reader, lane.type, waits_for[:1], of="key"))
    why = [] if is_paused and key.key.has_room else [why_keys_block(reader, key, sublanes[waits_for[0]], lane)]
    why += [why_keys_block(reader, each, (), lane) for each in later if not each.key.has_room]
    blocks = [Blocker("key" if key.key.tenant is None else "tenant", each) for each in why]
    return replace(
        waited,
        key=key,
        kept_back=True,
        blocked_by=sorted([*blocks, *waited.blocked_by], key=lambda each: each.rule not in _BEFORE_KEYS),
        bound_s=None,
        passed_until_s=None,
        estimate_s=None if waited.is_paused else key.estimate_s,
        not_before=waited.not_before if waited.is_paused else _time_of_retry(key),
        overdue_since_s=key.overdue_since_s,
    )


def _passed(lane: Lane, sublanes: Sequence[Sequence[Lane]]) -> int:
    """Return how many of its keys, whose *sublanes* these are, the job of *lane* stands for: it waits for the next."""
    mine = (lane.type, lane.name, lane.job_id)
    stands = [mine in ((each.type, each.name, each.job_id) for each in of_key) for of_key in sublanes]
    return (*stands, False).index(False)


def _time_of_retry(key: KeyWait) -> StartBound | None:
    """Return when the retry is due that a key is kept for; None if it is due, or there is none."""
    due_s = key.key.kept_until_s
    return None if due_s is None else StartBound(due_s, sentences.retry_is_due_clause(key.key.kept_for))


def _end_of_pauses(found: Sequence[PauseInForce]) -> StartBound | None:
    """Return when the last of some pauses ends; None if one of them has no end."""
    ends = [(each.until, str(each)) for each in found if each.until is not None]
    if not ends or len(ends) < len(found):
        return None
    until_s, what = max(ends)
    return StartBound(until_s, sentences.pause_ends_clause(what))


def _reserved(reader: Reader, lane: Lane, settings: Mapping[str, str], waited: Waiting) -> Waiting:
    """Return *waited* with the reserve, if there is one, that keeps back the first job of *lane*."""
    live, free = (sum(getattr(each, name) for each in waited.slots) for name in ("slots", "free"))
    found = why_kept_back_by_reserve(reader, settings, lane, live, free)
    patience_s = int(settings["reserve_patience_us"]) / SECOND_US
    if found is None or waited.bound_s is None:
        return waited
    why, kept = found
    bound_s = None
    if patience_s:
        bound_s = max(waited.bound_s, patience_s + int(settings["heartbeat_interval_us"]) / SECOND_US)
    return replace(
        waited,
        blocked_by=[Blocker("reserve", why), *waited.blocked_by],
        bound_s=bound_s,
        passed_until_s=None if bound_s is None else lane.enqueued_us / SECOND_US + bound_s,
        estimate_s=None if waited.estimate_s is None else waited.estimate_s * live / max(1, live - kept),
    )


def _held_back(reader: Reader, type_: str, keys: Sequence[str], waited: Waiting) -> Waiting:
    """Return *waited* with the pauses and limits that concern a job of *type_* with *keys*; all encoded."""
    pauses = pauses_of_job(reader, type_, keys)
    blocks = [Blocker("pause", sentences.pause_sentence(each)) for each in pauses]
    limits = limits_of_types(reader, [type_])
    blocks += [
        Blocker("type limit", each.why, is_closed=not each.limit) for each in limits if each.counting or not each.room
    ]
    slots = sum(each.slots for each in waited.slots)
    estimate_s = waited.estimate_s
    for each in limits:  # no more slots help than may be used
        estimate_s = estimate_s * max(1.0, slots / each.limit) if estimate_s is not None and each.limit else None
    if not blocks:
        return replace(waited, estimate_s=estimate_s)
    return replace(
        waited,
        blocked_by=[*blocks, *waited.blocked_by],
        bound_s=None,
        passed_until_s=None,
        estimate_s=None if pauses else estimate_s,
        not_before=_end_of_pauses(pauses),
    )


def _place_in(reader: Reader, lane: Lane) -> Command:
    return "zscore", reader.lane_key(lane), lane.job_id


def _after_first(reader: Reader, order: ClaimOrder, lane: Lane, types: Sequence[str], waited: Waiting) -> Waiting:
    """Return *waited*, changed by the waiting jobs of *types* (encoded) that go before all others, if there are any."""
    if not reader.first_lanes(types):
        return waited
    if key_usage.is_below_minimum(reader, lane):
        groups = key_usage.minimum_jobs_ahead(reader, order, types, lane)
        return replace(
            waited,
            rank_in_type=1 + sum(group.jobs for group in groups if group.type == decode_part(lane.type)),
            rank=1 + sum(group.jobs for group in groups),
            ahead=groups,
            goes_first=True,
            bound_s=None,
            passed_until_s=None,
        )
    passing = key_usage.minimum_jobs_passing(reader, order, types, lane)
    return replace(
        waited,
        rank_in_type=waited.rank_in_type + passing[lane.type],
        rank=waited.rank + passing.total(),
        passing=passing.total(),
        bound_s=None,
        passed_until_s=None,
    )


#: Largest number of attempts to read a job that moves meanwhile.
_TRIES = 5


@dataclass(frozen=True)
class Explanation(Job):
    """The facts of a task's newest job, and the reasons why it waits.

    *since_s*, the time of the last change of state, and *now_s*, the time of this answer, are Unix times by the
    server's clock; None if the state is "unknown". *waiting*: why a pending job waits. *near*: which workers hold the
    hint of a job that waits. *stopped*: the last time that the job was stopped while it ran, for a tenant below its
    minimum. *stops*: of a running job, the order to stop it; of a pending job, the stops that are under way for its
    tenant and type. *why_no_stop*: why there are none, although its tenant is below its minimum and it has waited for
    long enough. *in_list*: the list of stock Celery that has the message of a task without a job.
    """

    since_s: float | None = None
    now_s: float | None = None
    waiting: Waiting | None = None
    stopped: PreemptedJob | None = None
    stops: list[StopOrder] = field(default_factory=list)
    near: LocalWorkers | None = None
    why_no_stop: str | None = None
    in_list: StockMessage | None = None


def explain_listed(task_id: str, message: StockMessage, lists: StockLists) -> Explanation:
    """Explain in which of stock Celery's lists the message of a task without a job is, and why it is not ingested."""
    note = sentences.in_a_list_sentence(message, is_scheduled=lists.schedules(message.queue), ingests=lists.ingests)
    return Explanation(task_id, "unknown", task=message.task, note=note, in_list=message)


def explain(reader: Reader, task_id: str) -> Explanation:
    """Return the place of the newest job of *task_id* and, for a pending job, the reasons why it waits."""
    (ids,) = reader.jobs_of([task_id])
    for _ in range(_TRIES):
        found = _explain_job(reader, ids) if ids else None
        if found:
            return found
    note = "never published here, or forgotten (`affinity_keep` after its end): the result backend may know it"
    return Explanation(task_id, "unknown", note=note)


def _explain_job(reader: Reader, ids: Sequence[str]) -> Explanation | None:
    """Return the place of the last of *ids*; None if that job moved meanwhile, or is forgotten."""
    (row,) = read_jobs(reader, ids[-1:])
    found = with_runs(reader, [row], reader.ask_one(*settings_command(reader)), {row.job_id: list(ids[:-1])})
    if not found:
        return None
    ((job, run, claim),) = found
    now_us = reader.now_us()
    since_us, note, waiting, its_near = run.enqueued_us, job.note, None, None
    settings = complete_settings(reader.hash("settings"))
    if job.state == "scheduled":
        since_us = since_us if run.patient_us is not None else run.published_us or since_us
        note = _missed_ticks(reader, now_us) or _pause_of(run, now_us)
    elif claim is not None:
        since_us = claim.since_us
    elif job.has_ended:
        since_us = run.ended_us
    elif job.state == "pending":
        waiting = waiting_reasons(reader, run.lane, run.rules, now_us, settings)
        if waiting is None:
            return None
        if job.hint is not None:
            its_near = local_workers(reader, job.hint, now_us, settings)
    if job.calls > 1:
        merged = sentences.merged_sentence(job.calls - 1, job.merge_key)
        note = f"{merged}; {note}" if note else merged
    facts = {**vars(job), "note": note}
    ordered = stop_orders(reader, run, now_us) if run.rules and run.state in ("pending", "claimed") else []
    is_due = waiting is not None and waiting.goes_first and not waiting.kept_back
    is_due = is_due and now_us - run.lane.enqueued_us >= int(settings["preemption_delay_us"])
    return Explanation(
        **facts,
        since_s=since_us / SECOND_US,
        now_s=now_us / SECOND_US,
        waiting=waiting,
        near=its_near,
        stopped=last_preempted(reader, run.job_id, int(settings["preemption_max"])),
        stops=ordered,
        why_no_stop=why_not_preempted(reader) if is_due and not ordered else None,
    )


def _pause_of(run: JobRow, now_us: int) -> str | None:
    """Describe the pause of a scheduled job that was requeued or aborted. Return None for any other job."""
    if run.paused_until_us is None:
        return None
    return sentences.requeue_pause_sentence(run.requeues, run.deliveries, (run.paused_until_us - now_us) / SECOND_US)


def _missed_ticks(reader: Reader, now_us: int) -> str | None:
    ticked_us = decode_number(reader.hash("clock").get("ticked"))
    if now_us - ticked_us > SILENCE_COUNTS_US:
        return sentences.NO_TICKS
    return None
