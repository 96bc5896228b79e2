"""Fair shares: turns among tenants, by the slot time that each has used in a class (mode and priority).

Start-time fair queueing over several types. A tenant has a start tag per class and type. Its candidate there is its
oldest job in the lane. Each charge in the class adds to all of its start tags. A new candidate starts at the clock of
its class and type or later. With a half-life, a start tag is the logarithm of the tenant's decayed use instead. Jobs
without a tenant count as one tenant.
"""

from collections.abc import Collection

from celery_affinity.schema.constants import TENANT_PREFIX
from celery_affinity.schema.rules_codec import decode_rules
from celery_affinity.schema.values import lane_name
from celery_affinity.settings.tenants import weight_of

from . import keys, tags
from .model import Cohort, Job, Share


def tenant_of(job: Job) -> str:
    """Return the key of the job's tenant, or the key without a name."""
    return next((rules.key for rules in decode_rules(job.rules).keys if rules.is_of_tenant), TENANT_PREFIX)


def _class_of(job: Job) -> str:
    return lane_name(job.on_demand, job.priority)


def read_share(cohort: Cohort, job: Job) -> Share:
    return cohort.shares.setdefault((_class_of(job), tenant_of(job)), Share())


def change_shares(cohort: Cohort) -> None:
    """If the changed settings begin another generation, ignore all earlier use."""
    if cohort.shares_era != cohort.settings.shares_era:
        cohort.shares_era = cohort.settings.shares_era
        cohort.shares, cohort.clocks, cohort.candidates = {}, {}, {}
        list_some(cohort)


def list_some(cohort: Cohort) -> None:
    """Find the candidates of all tenants, and give start tags to new ones."""
    if cohort.settings.half_life_us is None:
        return
    found: dict[tuple[str, str, str], Job] = {}
    for job in keys.standing(cohort, {job.type for job in cohort.jobs.values()}):
        place = (_class_of(job), tenant_of(job), job.type)
        found[place] = min(found.get(place, job), job, key=lambda each: (each.order_us, each.id))
    for place, job_id in cohort.candidates.items():
        if place not in found or found[place].id != job_id:
            share = cohort.shares[place[:2]]
            if place not in found and place[2] in share.before:
                before = share.before.pop(place[2])
                share.starts.pop(place[2])
                share.starts |= {} if before is None else {place[2]: before}
    for place, job in sorted(found.items()):
        if cohort.candidates.get(place) != job.id:
            share, clock = read_share(cohort, job), cohort.clocks.get((place[0], job.type), 0)
            if place not in cohort.candidates:
                share.before.setdefault(job.type, share.starts.get(job.type))
            earlier = share.starts.get(job.type, 0)
            share.starts[job.type] = share.use if cohort.settings.half_life_us else max(earlier, clock)
    cohort.candidates = {place: job.id for place, job in found.items()}


def write_changed(cohort: Cohort) -> None:
    """Remove start tags without a candidate that cannot matter again, at the end of each function."""
    list_some(cohort)
    half_life_us = cohort.settings.half_life_us
    for place, share in cohort.shares.items():
        for type_, start in [*share.starts.items()] if _content(cohort, place) != share.written else ():
            has_ended = half_life_us or (not share.running and start <= cohort.clocks.get((place[0], type_), 0))
            if has_ended and (*place, type_) not in cohort.candidates:
                del share.starts[type_]
        share.before, share.written = {}, _content(cohort, place)


def _content(cohort: Cohort, place: tuple[str, str]) -> object:
    share = cohort.shares[place]
    candidates = {type_: cohort.candidates.get((*place, type_)) for type_ in share.starts}
    return share.credit_us, share.use, share.running, dict(share.starts), candidates


def forget_candidate(cohort: Cohort, job: Job) -> None:
    """Record that the candidate *job* is about to be claimed: its start tag is kept."""
    place = (_class_of(job), tenant_of(job), job.type)
    if cohort.candidates.get(place) == job.id:
        read_share(cohort, job).before.pop(job.type, None)


def _order(cohort: Cohort, job: Job) -> tuple[float, int, str]:
    return read_share(cohort, job).starts[job.type], job.order_us, job.id


def turn(cohort: Cohort, job: Job, may_start: Collection[Job]) -> tuple[list[Job], float | None]:
    """Return the candidates of the tenant whose turn it is in the class of *job*, and the start tag of the turn.

    Without a candidate that may start, the job itself goes, and there is no turn.
    """
    if cohort.settings.half_life_us is None:
        return [job], None
    list_some(cohort)
    firsts: dict[str, Job] = {}
    candidates = [cohort.jobs[job_id] for place, job_id in cohort.candidates.items() if place[0] == _class_of(job)]
    for each in candidates:
        firsts[each.type] = min(firsts.get(each.type, each), each, key=lambda one: _order(cohort, one))
    firsts = {type_: each for type_, each in firsts.items() if each in may_start}  # a reserve blocks the younger ones
    if not firsts:
        return [job], None
    first = min(firsts.values(), key=lambda one: _order(cohort, one))
    its = [each for each in candidates if tenant_of(each) == tenant_of(first)]
    return [each for each in its if each.type in firsts and each in may_start], _order(cohort, first)[0]


def charge(cohort: Cohort, job: Job, types: Collection[str], now_us: int) -> None:
    """Charge the tenant of the claimed *job* the usual time of the type, less its credit.

    *types*: the types of the worker. The start tag of its turn moves their clocks; a job that was claimed because its
    tenant was below its minimum, or by age, has none.
    """
    if cohort.settings.half_life_us is None:
        return
    share, usual_us = read_share(cohort, job), cohort.durations_us.get(job.type, 0)
    used_us = min(share.credit_us, usual_us)
    share.credit_us -= used_us
    share.running += 1
    _add(cohort, job, share, usual_us - used_us, now_us)
    if cohort.turn_start is not None and not cohort.settings.half_life_us:
        for type_ in types:
            place = (_class_of(job), type_)
            cohort.clocks[place] = max(cohort.clocks.get(place, 0), int(cohort.turn_start))
    job.charged = (cohort.settings.shares_era, usual_us)
    job.has_more = job.has_more or tenant_of(job) == TENANT_PREFIX


def free(cohort: Cohort, job: Job, now_us: int) -> None:
    """Correct the charge of *job*, which has left its slot: charge the additional time, or credit the rest."""
    charged, job.charged = job.charged, None
    if cohort.settings.half_life_us is None or charged is None or charged[0] != cohort.settings.shares_era:
        return
    list_some(cohort)
    share, more_us = read_share(cohort, job), max(0, now_us - (job.claimed_us or 0)) - charged[1]
    share.running = max(0, share.running - 1)
    _add(cohort, job, share, max(0, more_us), now_us)
    share.credit_us += max(0, -more_us)


def _add(cohort: Cohort, job: Job, share: Share, us: int, now_us: int) -> None:
    more = us // weight_of(tenant_of(job), cohort.settings.values.get("tenants", ""))
    half_life_us = cohort.settings.half_life_us
    share.before = {type_: None if us is None else us + more for type_, us in share.before.items()}
    if more and half_life_us:
        share.use = tags.decayed(share.use, more, half_life_us, now_us)
    for type_ in share.starts if more else ():
        share.starts[type_] = share.use if half_life_us else share.starts[type_] + more
