"""Preemption of a running job for a waiting tenant below its minimum: which job, when, and its end."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from celery_affinity.schema.constants import (
    ANSWERED_WITHIN_US,
    FORCE,
    MAX_FIRST_JOBS,
    MAX_FIRST_LANES,
    MAX_GIVING,
    MAX_GIVING_LOOKED_AT,
    MAX_PREEMPTORS,
    MAX_PRIORITY,
    MAX_RUN_US,
    MAX_STOP_ORDERS,
    MAX_VICTIMS,
    TENANT_PREFIX,
)
from celery_affinity.schema.rules_codec import decode_rules
from celery_affinity.schema.values import decode_part, encode_part
from celery_affinity.settings.tenants import minimum_of

from . import keys as keys_module
from . import matching, prefetch, type_limits
from .model import Cohort, Job, Stop, Worker
from .placement import free_slots

# -- The end of a claim with or without a stop order.


def free(cohort: Cohort, job: Job) -> None:
    """The claim of *job* has ended in any way: withdraw its stop order."""
    cohort.stop_orders.pop(job.id, None)


def stopped(cohort: Cohort, job: Job, worker: Worker, stop: Stop | None, ran: str, now_us: int) -> str:
    """*worker* reports that it preempted *job*, which had the order *stop*. Return the outcome of the claim.

    A stop without an order counts as a requeue.
    """
    if stop is None:
        return "requeued"
    if job.acked:
        return "returned"
    ran_us = min(int(ran), MAX_RUN_US) if ran.isascii() and ran.isdecimal() else 0
    job.preemptions += 1
    job.preempted_us, job.preempted_on, job.preempted_ran_us = now_us, worker.name, ran_us
    job.preempted_for = decode_part(stop.key.removeprefix(TENANT_PREFIX))
    cohort.counters["preempted"] += 1
    cohort.counters["preempted_us"] += ran_us
    since_us = now_us - int(cohort.settings.get("preemption_exempt_us"))
    worker.preempted_us = [*(at_us for at_us in worker.preempted_us if at_us > since_us), now_us]
    return "returned"


# -- tick: the tenants that need slots, and the jobs stopped for them.


@dataclass
class _Stops:
    """The current orders: *needed* by tenants, and by tenant and type; *lost* by their victims' tenants."""

    needed: Counter[tuple[str, str]] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)

    def number_for(self, key: str, type_: str = "") -> int:
        return self.needed[key, type_]

    def add(self, key: str, type_: str) -> None:
        self.needed.update([(key, ""), (key, type_)])


def order_evictions(cohort: Cohort, now_us: int) -> None:
    """Review the current orders, and order stops for tenants that need slots while none is free."""
    if not cohort.stop_orders and not cohort.first_keys:
        return
    since_us = now_us - int(cohort.settings.get("preemption_delay_us"))
    stops = review(cohort, since_us, now_us)
    giving = _giving(cohort, stops)
    candidates = _candidates(cohort, giving, now_us)
    asked: set[str] = set()
    for key in find(cohort, since_us, now_us):
        wanted, missing = _wanted(cohort, key, since_us, now_us)
        missing -= stops.number_for(key)
        for type_, number in wanted.items():
            for _ in range(min(missing, number - stops.number_for(key, type_))):
                if len(cohort.stop_orders) >= MAX_STOP_ORDERS:
                    return
                victim = _next_of(cohort, candidates, giving, type_, now_us)
                if victim is None:
                    break
                order(cohort, victim, key, type_, now_us)
                worker = cohort.workers[victim.worker or ""]
                if _number_ahead(worker) and worker.id not in asked:
                    asked.add(worker.id)
                    prefetch.request_return(worker, _number_ahead(worker), worker.types)
                stops.add(key, type_)
                giving[tenant_of(victim)] -= 1
                candidates.remove(victim)
                missing -= 1


def order(cohort: Cohort, victim: Job, key: str, type_: str, now_us: int) -> None:
    """Order the stop of *victim* for a job of *type_* of the tenant *key*."""
    assert victim.worker is not None
    assert victim.fence is not None
    grace_ms = int(cohort.settings.get("preemption_grace_us")) // 1000
    stop = Stop(victim.id, victim.fence, victim.worker, key, type_, now_us, grace_ms)
    cohort.workers[victim.worker].inbox.insert(0, stop.sign)
    cohort.stop_orders[victim.id] = victim.stop = stop


def review(cohort: Cohort, since_us: int, now_us: int) -> _Stops:
    """Withdraw orders that are unread and no longer needed, or overdue. Return the remaining ones."""
    stops = _Stops()
    for stop in sorted(cohort.stop_orders.values(), key=lambda stop: (stop.ordered_us, stop.job_id)):
        wanted, missing = _wanted(cohort, stop.key, since_us, now_us)
        is_late = now_us - stop.ordered_us >= stop.grace_ms * 1000 + ANSWERED_WITHIN_US
        is_needed = (
            not is_late
            and stops.number_for(stop.key) < missing
            and stops.number_for(stop.key, stop.type) < wanted.get(stop.type, 0)
        )
        job, inbox = cohort.jobs[stop.job_id], cohort.workers[stop.worker].inbox
        if not is_needed and stop.sign in inbox:
            inbox.remove(stop.sign)
            del cohort.stop_orders[stop.job_id]
            job.stop = job.stop if is_late else None
            continue
        stops.lost[tenant_of(job)] += 1
        if is_needed:
            stops.add(stop.key, stop.type)
    return stops


# -- For whom: tenants below their minimum with a job that would be first, while no free slot fits it.


def find(cohort: Cohort, since_us: int, now_us: int) -> list[str]:
    """Return the keys of tenants in need, the one with the longest waiting job first."""
    of_lane: dict[tuple[str, bool, int], list[Job]] = {}
    standing = keys_module.standing(cohort, cohort.types())
    for job in sorted(standing, key=_age):
        if keys_module.goes_first(cohort, job) and job.order_us <= since_us:
            of_lane.setdefault((job.type, job.on_demand, job.priority), []).append(job)
    some = [*of_lane.values()][:MAX_FIRST_LANES]
    found = [job for jobs in some if _is_needed(cohort, jobs[0], now_us) for job in jobs[:MAX_PREEMPTORS]]
    looked_at = sorted(found, key=_age)[:MAX_FIRST_JOBS]
    keys = (tenant_of(job) for job in looked_at if job.waits_since_us <= since_us)
    return [*dict.fromkeys(keys)][:MAX_PREEMPTORS]


def _wanted(cohort: Cohort, key: str, since_us: int, now_us: int) -> tuple[dict[str, int], int]:
    """Return the number of jobs per type that the tenant *key* needs slots for, and the number of slots it lacks."""
    missing = max(0, _min_of(cohort, key) - len(keys_module.holders(cohort, key)))
    if not missing or key not in cohort.first_keys:
        return {}, missing
    standing, of_lane = keys_module.standing_ids(cohort), dict[tuple[str, bool, int], list[Job]]()
    for job in sorted(keys_module.waiting(cohort, key), key=_age):
        of_lane.setdefault((job.type, job.on_demand, job.priority), []).append(job)
    first = [(job, jobs) for jobs in of_lane.values() for job in jobs if job.id in standing]
    number: Counter[str] = Counter()
    for job, jobs in sorted(first, key=lambda each: _age(each[0])):
        if job.order_us <= since_us and _is_needed(cohort, job, now_us):
            older = [each for each in jobs if each.order_us <= since_us]
            is_long = len(older) > MAX_PREEMPTORS
            number[job.type] += sum(is_long or each.waits_since_us <= since_us for each in older)
    return dict(number), missing


def _is_needed(cohort: Cohort, job: Job, now_us: int) -> bool:
    """Return True if *job* would start in one fitting free slot, and there is none."""
    is_open = type_limits.open(cohort, job.type) and not matching.free_for(cohort, job.type)
    return is_open and type_limits.may_start(cohort, job, now_us, free=1)


# -- Which job is stopped.


def tenant_of(job: Job) -> str:
    """Return the key of the tenant of *job*, its last one."""
    return keys_module.keys_of(job)[-1].key


def _giving(cohort: Cohort, stops: _Stops) -> dict[str, int]:
    """Return the number of possible victims per tenant above its minimum, ignoring current orders."""
    stoppable = Counter(tenant_of(job) for job in _claimed(cohort) if decode_rules(job.rules).is_preemptible)
    keys = sorted(stoppable, key=lambda key: (stoppable[key], key), reverse=True)[:MAX_GIVING_LOOKED_AT]
    spare = {key: len(keys_module.holders(cohort, key)) - stops.lost[key] - _min_of(cohort, key) for key in keys}
    return dict([(key, number) for key, number in spare.items() if number > 0][:MAX_GIVING])


def _candidates(cohort: Cohort, giving: dict[str, int], now_us: int) -> list[Job]:
    """Return the possible victims in order."""
    found: list[Job] = []
    for key in giving:
        its = [job for job in _claimed(cohort) if decode_rules(job.rules).is_preemptible and tenant_of(job) == key]
        last = sorted(its, key=lambda job: -(job.fence or 0))[:MAX_VICTIMS]
        found += [job for job in last if _may_be_stopped(cohort, job, now_us)]
    is_reversed = cohort.settings.weights.priority_reversed

    def rank(job: Job) -> tuple[int, bool, int, str]:
        priority = MAX_PRIORITY - job.priority if is_reversed else job.priority
        return priority, job.on_demand, -(job.started_us or 0), job.id

    return sorted(found, key=rank)


def _may_be_stopped(cohort: Cohort, job: Job, now_us: int) -> bool:
    exempt_us, most = (int(cohort.settings.get(f"preemption_{name}")) for name in ("exempt_us", "max"))
    if job.started_us is None or job.acked or job.preemptions >= most:
        return False
    if job.preemptions and now_us - job.started_us < exempt_us:
        return False
    return job.stop is None or job.stop.fence != job.fence


def _next_of(cohort: Cohort, candidates: Sequence[Job], giving: dict[str, int], type_: str, now_us: int) -> Job | None:
    """Return the first of *candidates* whose slot serves *type_*, and whose tenant stays at or above its minimum."""
    return next((job for job in candidates if giving[tenant_of(job)] and _frees(cohort, job, type_, now_us)), None)


def _frees(cohort: Cohort, job: Job, type_: str, now_us: int) -> bool:
    """Return True if stopping *job* frees a slot that serves *type_*, and none was freed by a stop recently."""
    worker = cohort.workers[job.worker or ""]
    if not worker.takes_jobs or type_ not in worker.types:
        return False
    if sum(cohort.jobs[each].started_us is None for each in worker.claims) < _number_ahead(worker):
        return False  # it has fewer slots than running jobs
    if worker.stops != FORCE and encode_part(job.task_name) not in worker.stops.split():
        return False
    since_us = now_us - int(cohort.settings.get("preemption_exempt_us"))
    return not any(since_us < at_us <= (job.started_us or 0) for at_us in worker.preempted_us)


def _number_ahead(worker: Worker) -> int:
    return max(0, -free_slots(worker.slots, worker.other, len(worker.claims)))


def _claimed(cohort: Cohort) -> list[Job]:
    return [cohort.jobs[job_id] for worker in cohort.workers.values() for job_id in worker.claims]


def _min_of(cohort: Cohort, key: str) -> int:
    return minimum_of(key, cohort.settings.values.get("tenants", ""))


def _age(job: Job) -> tuple[int, str]:
    return job.order_us, job.id
