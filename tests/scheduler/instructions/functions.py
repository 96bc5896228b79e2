"""The measured server functions, on fleets that are equal in each run."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import redis

from celery_affinity.policy.run_times import RunTime
from celery_affinity.scheduler.messages import Claim, ClaimReport, EndArguments, JoinArguments, TypeMetricsDelta
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.constants import MAX_HINTS, MIN_RUNS
from celery_affinity.schema.histograms import sum_field, wait_field
from celery_affinity.schema.job_record import NewJob, with_suffix
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings

#: Numbers of invocations before and within the measurement: enough for Lua to collect their garbage in it.
WARM_UP, CALLS = 50, 400

PENDING = 1_500
TASK = "proj.tasks.render"
MESSAGE = "x" * 700  # size of Celery's message for a small task
SLOTS = 8


@dataclass(frozen=True)
class MeasuredFunction:
    """A server function with its measured invocation. Costs are per job."""

    name: str
    call: Callable[[], object]
    jobs: int = 1  # per call
    calls: int = CALLS  # in the measurement


#: Measured functions of one fleet, which are called one after another.
MeasuredFunctions = Iterator[MeasuredFunction]


class HeldJob(NamedTuple):
    """A job that a worker holds."""

    worker: str
    claim: Claim


class Fleet:
    """Equal workers with *slots* each for all *types*, their first jobs, and *pending* jobs.

    *rules*: the rules of each job; ``{}`` is replaced by one of *names* numbers. *due*: its words of a due time.
    *settings*: changes to the defaults.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        types: int = 1,
        priorities: int = 1,
        pending: int = 0,
        workers: int = 1,
        slots: int,
        rules: str = "",
        names: int = 1,
        due: str = "",
        settings: dict[str, str] | None = None,
    ) -> None:
        self.scheduler = Scheduler(client, Keys())
        if settings:
            self.scheduler.configure(settings)
        self.types = [f"type{number}" for number in range(types)]
        self.priorities, self.slots, self.rules, self.names, self.due = priorities, slots, rules, names, due
        self._numbers = count()
        self._sequence = 0
        self.publish(pending)
        self.workers = [f"worker{number}" for number in range(workers)]
        for worker in self.workers:
            self.scheduler.join(JoinArguments(worker, f"{worker}@host", self.types, slots), shared_settings(Settings()))
        self.held: list[HeldJob] = []
        self.take()

    def publish(self, number: int = 1) -> None:
        self.scheduler.publish(*[self._job(next(self._numbers)) for _ in range(number)])

    def _job(self, number: int) -> NewJob:
        """Return a job. With priorities, every fourth job is on demand."""
        rules = self.rules.format(number % self.names)
        return NewJob(
            with_suffix(f"job{number:06}", rules),
            self.types[number % len(self.types)],
            MESSAGE,
            on_demand=self.priorities > 1 and number % 4 == 0,
            priority=number % self.priorities,
            task_id=f"task-{number:06}",
            task_name=TASK,
            rules=rules,
            due=self.due,
        )

    def take(self) -> None:
        """Let the workers read their inboxes."""
        for worker in self.workers:
            while payload := self.scheduler.client.rpop(Keys().key("inbox", worker)):
                if not payload.startswith(b"\n"):
                    self.held.append(HeldJob(worker, Claim.parse(payload)))

    def release(self) -> None:
        """End the job that was held longest. The reply contains its worker's next job."""
        self._sequence += 1
        worker, claim = self.held.pop(0)
        ends = [EndArguments(claim.job_id, claim.fence, "acked")]
        claims = self.scheduler.release_and_claim(worker, acks=[], ends=ends, sequence=self._sequence, inline=True)
        self.held += [HeldJob(worker, each) for each in claims]

    def acks(self) -> Callable[[], None]:
        """Return a function that acks the next job per call."""
        remaining = iter(list(self.held))

        def ack() -> None:
            worker, claim = next(remaining)
            self.scheduler.release_and_claim(worker, acks=[claim[:2]], ends=[], sequence=0, inline=True)

        return ack

    def count(self) -> None:
        """Send the metric deltas of one heartbeat interval: two wait sizes per type, and two times."""
        self._sequence += 1
        kinds = ("queued", "done")
        grown = {wait_field(kind, size): 5 for kind in kinds for size in (3, 4)} | dict.fromkeys(
            map(sum_field, kinds), 400
        )
        sums = [TypeMetricsDelta(type_, grown, 10, 400, "11968 0 10") for type_ in self.types]
        assert self.scheduler.add_metrics(self.workers[0], self._sequence, sums)

    def sync(self) -> None:
        running = [ClaimReport(*claim[:2], 1000) for _, claim in self.held]
        assert self.scheduler.sync(self.workers[0], running, slots=self.slots, other=0, draining=False).is_registered


def one_type(client: redis.Redis) -> MeasuredFunctions:
    """Jobs of one type, and one worker."""
    fleet = Fleet(client, pending=PENDING, slots=1)
    yield MeasuredFunction("publish", fleet.publish)
    yield MeasuredFunction("publish, 25 in a call", lambda: fleet.publish(25), jobs=25, calls=6)
    yield MeasuredFunction("release", fleet.release)


def tenants(client: redis.Redis) -> MeasuredFunctions:
    """Jobs of a hundred tenants and one worker: without quotas, with high and low maxima, and with shares."""
    of_tenants = {"pending": PENDING, "slots": 1, "rules": "key=tenant%3At{} quota=settings", "names": 100}
    fleet = Fleet(client, **of_tenants)
    yield MeasuredFunction("publish of a tenant", fleet.publish)
    yield MeasuredFunction("release of a tenant", fleet.release)
    client.flushall()
    fleet = Fleet(client, **of_tenants, settings={"tenants": "*=max:20"})
    yield MeasuredFunction("publish with a maximum", fleet.publish)
    yield MeasuredFunction("release with a maximum", fleet.release)
    client.flushall()
    fleet = Fleet(client, **of_tenants, settings={"tenants": "*=max:3"})
    yield MeasuredFunction("publish of a flood", fleet.publish)
    yield MeasuredFunction("release of a flood", fleet.release)
    client.flushall()
    fleet = Fleet(client, **of_tenants, settings={"tenant_turns": "share"})
    yield MeasuredFunction("publish with a share", fleet.publish)
    yield MeasuredFunction("release with a share", fleet.release)


def due_times(client: redis.Redis) -> MeasuredFunctions:
    """Jobs with a due time, and jobs whose known run times give them a head start."""
    fleet = Fleet(client, pending=PENDING, slots=1, due="w10000000")
    yield MeasuredFunction("publish with a due time", fleet.publish)
    yield MeasuredFunction("release with a due time", fleet.release)
    client.flushall()
    learned = RunTime()
    for _ in range(MIN_RUNS):
        learned.add(None, 2_000_000)
    client.hset(Keys().key("run_times"), TASK, learned.text)
    fleet = Fleet(client, pending=PENDING, slots=1, settings={"stretch": "2"})
    yield MeasuredFunction("publish with stretch", fleet.publish)
    yield MeasuredFunction("release with stretch", fleet.release)


def keys(client: redis.Redis) -> MeasuredFunctions:
    """Jobs with one of a hundred exclusive keys, and one worker."""
    fleet = Fleet(client, pending=PENDING, slots=1, rules="key=city%3A{} limit=1", names=100)
    yield MeasuredFunction("publish with a key", fleet.publish)
    yield MeasuredFunction("release with a key", fleet.release)


def hints(client: redis.Redis) -> MeasuredFunctions:
    """Jobs with ten hints, and one worker that soon holds all of them; then jobs with twenty hints.

    The worker holds ten of the twenty, and a younger job with one of them is claimed first.
    """
    of_hints = {"pending": PENDING, "slots": MAX_HINTS, "rules": "near=h{}"}
    fleet = Fleet(client, **of_hints, names=MAX_HINTS, settings={"locality_bonus": "80"})
    yield MeasuredFunction("publish with a hint", fleet.publish)
    yield MeasuredFunction("release with a hint", fleet.release)
    client.flushall()
    fleet = Fleet(client, **of_hints, names=2 * MAX_HINTS, settings={"locality_bonus": "1000000"})
    yield MeasuredFunction("release of a younger job", fleet.release)


def several_types(client: redis.Redis) -> MeasuredFunctions:
    """Jobs of three types, eleven priorities and both modes, and one worker."""
    fleet = Fleet(client, types=3, priorities=11, pending=PENDING, slots=1)
    yield MeasuredFunction("publish, 3 types, 11 priorities", fleet.publish)
    yield MeasuredFunction("release, 3 types, 11 priorities", fleet.release)


def idle(client: redis.Redis) -> MeasuredFunctions:
    """Workers with free slots."""
    fleet = Fleet(client, workers=math.ceil((WARM_UP + CALLS) / SLOTS), slots=SLOTS)
    yield MeasuredFunction("publish to an idle slot", fleet.publish)
    fleet.take()
    yield MeasuredFunction("ack", fleet.acks())
    yield MeasuredFunction("release, no job follows", fleet.release)


def busy(client: redis.Redis) -> MeasuredFunctions:
    """A worker whose slots all run jobs, and its periodic calls."""
    fleet = Fleet(client, pending=20, slots=SLOTS)
    yield MeasuredFunction("sync of 8 jobs", fleet.sync)
    yield MeasuredFunction("count", fleet.count)
    yield MeasuredFunction("heartbeat", lambda: fleet.scheduler.heartbeat(fleet.workers[0], loop_runs=True))
    yield MeasuredFunction("tick", fleet.scheduler.tick)


FLEETS: dict[str, Callable[[redis.Redis], MeasuredFunctions]] = {
    each.__name__: each for each in (one_type, several_types, due_times, tenants, keys, hints, idle, busy)
}
