"""A worker joins, lives, leaves, or is dead: join, sync, add_metrics, heartbeat, leave, recover."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from celery_affinity.policy.run_times import RunTime
from celery_affinity.scheduler.messages import TaskRuns, TypeMetricsDelta
from celery_affinity.schema.constants import AVERAGED_OVER, GIVEN_UP_US, MAX_MOVES, MAX_TASKS_LEARNED
from celery_affinity.schema.keys import SCHEMA
from celery_affinity.schema.values import encode_part

from .. import claims, fair_share, keys, matching, prefetch, requeue, type_limits, workers
from ..model import Cohort, Job, Worker
from ..replies import NONE, Beaten, Joined, Left, Recovered, Synced

# -- join: a worker joins with its types and slots, or rejoins with others; it keeps its claims.


def join(
    cohort: Cohort,
    worker_id: str,
    *,
    name: str,
    types: Collection[str],
    slots: int,
    other: int,
    app: str,
    stops: str = "",
    settings: Mapping[str, str],
    now_us: int,
    priority: int = 0,
) -> Joined:
    """Add a worker. *stops*: the tasks it can preempt. *settings*: the values of its app.conf, which apply when new."""
    cohort.schema = cohort.schema or SCHEMA
    worker = cohort.workers.get(worker_id)
    before = dict(cohort.settings.values)
    replaced = cohort.settings.adopt(app, settings) if worker is None else []
    fair_share.change_shares(cohort)
    type_limits.change(cohort, before)
    namesake = cohort.names.get(name)
    cohort.names[name] = worker_id
    void_up_to = 0 if worker and worker.accepting else cohort.fence
    if worker is None:
        worker = Worker(worker_id, name, frozenset(types), slots, other, joined_us=now_us, seen_us=now_us, app=app)
        cohort.workers[worker_id] = worker
    else:
        workers.detach(cohort, worker)
        worker.name, worker.types, worker.slots, worker.other = name, frozenset(types), slots, other
        worker.app = app
        worker.seen_us, worker.accepting, worker.stalled, worker.free = now_us, True, False, 0
    worker.stops = stops or worker.stops
    worker.priority = priority
    cohort.settings.renew_for_claims()
    workers.write_retention(cohort, worker)
    matching.recount(worker, now_us)
    keys.recheck(cohort, now_us)
    unfilled = matching.fill(cohort, worker.types, now_us, worker, alone=not cohort.to_fill)
    if not unfilled:
        prefetch.request_jobs(cohort, worker)
    return Joined(unfilled, namesake if namesake != worker_id else None, replaced, void_up_to, now_us)


# -- sync: a worker's heartbeat with its claims. Only the worker itself gives up a claim.


def sync(
    cohort: Cohort,
    worker_id: str,
    named: Iterable[tuple[str, int, int]],
    *,
    slots: int,
    other: int,
    draining: bool,
    now_us: int,
) -> Synced:
    """Compare the claims that the worker reports with the recorded ones.

    *named*: job id, fencing token, and µs since the task start (-1: not started) of each reported claim.
    """
    worker = cohort.workers.get(worker_id)
    if worker is None or not (worker.accepting or draining):
        return Synced(False, False, NONE, [], [], 0, now_us, 0)
    lowers_reserves = slots < worker.slots and type_limits.in_force(cohort)  # these are percentages of the live slots
    worker.seen_us, worker.slots, worker.other = now_us, slots, other
    workers.write_retention(cohort, worker)
    if draining:
        workers.close(worker, now_us)

    held, void = {}, []
    for job_id, fence, running_us in named:
        held[job_id] = fence
        job = claims.held(cohort, worker_id, job_id, fence)
        if job is None:
            void.append(job_id)
        elif running_us >= 0 and job.started_us is None:
            job.started_us = now_us - running_us
    missing = _look_at_what_is_not_named(cohort, worker, held, draining, now_us)
    matching.recount(worker, now_us)

    ticker = workers.is_ticker(cohort, worker, now_us)
    # Other free slots belong to workers that sync as well.
    may_fill = worker.free or missing.returned or cohort.to_fill or lowers_reserves
    unfilled = matching.fill(cohort, worker.types | missing.types, now_us) if may_fill else NONE
    if not unfilled:
        prefetch.request_jobs(cohort, worker)
    return Synced(True, ticker, unfilled, missing.asked, void, cohort.settings.revision, now_us, missing.returned)


class _Missing(NamedTuple):
    """*asked*: claims to query. *returned*: number of jobs that are pending again, of *types*."""

    asked: list[tuple[str, int]]
    returned: int
    types: set[str]


def _look_at_what_is_not_named(
    cohort: Cohort, worker: Worker, held: Mapping[str, int], draining: bool, now_us: int
) -> _Missing:
    """Take back unread claims, and all unnamed claims if *worker* is *draining*; query the other unnamed ones."""
    asked: list[tuple[str, int]] = []
    types: set[str] = set()
    looked_at = size = returned = 0
    for job_id, fence in list(worker.claims.items()):
        job = cohort.jobs[job_id]
        if held.get(job_id) == fence or not (draining or _may_have_arrived(cohort, job, now_us)):
            continue
        if looked_at == MAX_MOVES or size > cohort.most_bytes:
            break
        looked_at, size = looked_at + 1, size + claims.payload(cohort, job).size
        if claims.is_unread(cohort, worker, job) or draining:
            again = requeue.requeue(cohort, job, now_us, how="returned")
            types, returned = types | again, returned + len(again)
        else:
            asked.append((job_id, fence))
    return _Missing(asked, returned, types)


def _may_have_arrived(cohort: Cohort, job: Job, now_us: int) -> bool:
    """Return True if the worker must have received a claim of this age; a younger one may still be on its way."""
    return now_us - (job.claimed_us or 0) > int(cohort.settings.get("heartbeat_interval_us"))


# -- add_metrics: a worker sends its metric deltas: waits, slot times and ends, only for reports.


def add_metrics(
    cohort: Cohort,
    worker_id: str,
    number: int,
    sums: Iterable[TypeMetricsDelta],
    runs: Iterable[TaskRuns] = (),
    *,
    now_us: int,
) -> bool:
    """Add *sums*, and learn from *runs*. Return True if the worker exists. A counted *number* changes nothing."""
    worker = cohort.workers.get(worker_id)
    if worker is None:
        return False
    if number <= worker.counted:
        return True
    worker.counted = number
    for each in sums:
        cohort.metrics[each.type].update(each.grown)
        if each.pace:
            worker.took[each.type] = each.pace
        # Otherwise the average was deleted with the last worker of the type.
        if each.ended and cohort.capacity(each.type):
            _average(cohort, each.type, each.ended, each.took_us)
    for task_runs in runs:
        _learn(cohort, task_runs, now_us)
    if len(cohort.run_times) > MAX_TASKS_LEARNED:
        newest_first = sorted(cohort.run_times.items(), key=lambda row: (-row[1].last_us, row[0]))
        cohort.run_times = dict(newest_first[: MAX_TASKS_LEARNED * 9 // 10])
    return True


def _learn(cohort: Cohort, runs: TaskRuns, now_us: int) -> None:
    learned = cohort.run_times.setdefault(encode_part(runs.task), RunTime())
    for nth, (size, took_us) in enumerate(runs.last):
        learned.add(size, took_us, skipped=0 if nth else runs.number - len(runs.last))
    learned.last_us = now_us


def _average(cohort: Cohort, type_: str, number: int, sum_us: int) -> None:
    """Add *number* slot times with the sum *sum_us* to the moving average of a type.

    average + (sum - number * average) / max(number, `AVERAGED_OVER`), rounded down; the first average is sum / number.
    """
    before_us = cohort.durations_us.get(type_)
    if before_us is None:
        cohort.durations_us[type_] = sum_us // number
    else:
        cohort.durations_us[type_] = before_us + (sum_us - number * before_us) // max(number, AVERAGED_OVER)


# -- heartbeat: a worker's guard reports that the worker lives, and if its event loop runs.


def heartbeat(cohort: Cohort, worker_id: str, *, loop_runs: bool, now_us: int) -> Beaten:
    """Keep a worker alive. While its event loop is blocked, it gets no job, and unread jobs are returned."""
    worker = cohort.workers.get(worker_id)
    if worker is None or worker.seen_us == GIVEN_UP_US:
        return Beaten(False, False, NONE)
    worker.seen_us = now_us
    types: set[str] = set()
    if not loop_runs:
        worker.stalled = True
        matching.recount(worker, now_us)
        types = _return_unread(cohort, worker, now_us)
    elif worker.stalled:
        worker.stalled = False
        types = set(worker.types)
        matching.recount(worker, now_us)
    unfilled = matching.fill(cohort, types, now_us)
    return Beaten(True, bool(worker.inbox) and not loop_runs, unfilled)


def _return_unread(cohort: Cohort, worker: Worker, now_us: int) -> set[str]:
    """Take back the unread jobs in the inbox. Return the types that got a pending job."""
    types: set[str] = set()
    unread = size = 0
    while worker.inbox and unread < MAX_MOVES and size <= cohort.most_bytes:
        delivery = worker.inbox.pop(0)
        unread += 1
        if isinstance(delivery, str):
            continue  # a control message is not a job
        size += delivery.size
        job = claims.held(cohort, worker.id, delivery.job_id, delivery.fence)
        if job:
            types |= requeue.requeue(cohort, job, now_us, how="returned")
    return types


# -- leave: a worker leaves. Its claims are pending again with their enqueue times.


def leave(cohort: Cohort, worker_id: str, *, now_us: int) -> Left:
    """Remove a worker."""
    worker = cohort.workers.get(worker_id)
    if worker is None:
        return Left(NONE, False, 0)
    workers.close(worker, now_us)
    types: set[str] = set()
    returned = 0
    for job_id in list(worker.claims)[:MAX_MOVES]:
        again = requeue.requeue(cohort, cohort.jobs[job_id], now_us, how="returned")
        types, returned = types | again, returned + len(again)
    if not worker.claims:
        workers.remove(cohort, worker)
    return Left(matching.fill(cohort, types, now_us), bool(worker.claims), returned)


# -- recover: a guard reports the death of its worker. The worker's claims are requeued, counted as a delivery.


def recover(cohort: Cohort, worker_id: str, *, now_us: int) -> Recovered:
    """Reclaim the jobs of a dead worker."""
    worker = cohort.workers.get(worker_id)
    if worker is None:
        return Recovered(False, 0, NONE)
    types: set[str] = set()
    taken = workers.take_back(cohort, worker, MAX_MOVES, types, now_us, "died")
    return Recovered(not taken.workers, taken.jobs, matching.fill(cohort, types, now_us))
