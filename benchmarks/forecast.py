"""Measure the forecast of late jobs: ``python -m benchmarks.forecast [--jobs N] [--time N]``.

Each scenario is a made-up day of a fleet. Jobs are claimed as the scheduler does it, by rank, and run times are learned
from the runs that have ended. The state is written to a server as the server functions write it. 60 s before a waiting
job is due, the report `celery affinity due` is made, and at the end compared with what happened: a job is late if it
starts more than 1 s after its due time. Nothing is read from the future.

The naive forecast is measured, too: a job is late if the usual run times of the jobs that rank before it, divided by
the slots that fit it, exceed the time until it is due.
"""

import argparse
import heapq
import json
import math
import random
import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from celery_affinity.clock import SECOND_US
from celery_affinity.embedded.server import EmbeddedServer
from celery_affinity.policy.run_times import RunTime
from celery_affinity.policy.score import Weights, score
from celery_affinity.reports.due import LateJob, read_due
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.constants import AVERAGED_OVER
from celery_affinity.schema.keys import Keys

START_US = 1_800_000_000 * SECOND_US
#: A report about a job is made this long before its due time.
BEFORE_US = 60 * SECOND_US
TARGET_WAIT_US = 256 * SECOND_US
_MINUTE_US = 60 * SECOND_US


@dataclass(eq=False)
class Job:
    at_us: int
    type: str
    task: str
    took_us: int
    lane: str = "queued.0"
    size: float | None = None
    due_us: int | None = None
    number: int = 0
    started_us: int | None = None
    worker: int = -1
    fence: int = 0

    @property
    def id(self) -> str:
        return f"job-{self.number:06}"

    @property
    def head_us(self) -> int:
        return 0 if self.due_us is None else max(0, min(TARGET_WAIT_US, self.at_us + TARGET_WAIT_US - self.due_us))

    @property
    def rank_us(self) -> int:
        return self.at_us - self.head_us

    @property
    def is_late(self) -> bool:
        return self.due_us is not None and (self.started_us is None or self.started_us - self.due_us > SECOND_US)


@dataclass
class Scenario:
    """*workers*: types and slots. *jobs*: by time."""

    name: str
    workers: Sequence[tuple[tuple[str, ...], int]]
    jobs: list[Job] = field(default_factory=list)


@dataclass
class Outcome:
    """The forecasts: jobs that were named, also by the naive forecast, and the report of each named job."""

    asked: list[Job] = field(default_factory=list)
    named: set[int] = field(default_factory=set)
    naively: set[int] = field(default_factory=set)
    late: dict[int, LateJob] = field(default_factory=dict)

    @property
    def late_jobs(self) -> set[int]:
        return {job.number for job in self.asked if job.is_late}

    def precision(self, named: set[int]) -> float:
        return len(named & self.late_jobs) / max(1, len(named))

    def recall(self, named: set[int]) -> float:
        return len(named & self.late_jobs) / max(1, len(self.late_jobs))


class ReaderAtTime(Reader):
    """Reads at a time that its user sets."""

    at_us = START_US

    def now_us(self) -> int:
        return self.at_us


class Fleet:
    """Claims the jobs of a scenario, and writes the state to a server."""

    def __init__(self, scenario: Scenario, client: "redis.Redis[bytes]") -> None:
        self._scenario, self._client = scenario, client
        self._key = Keys().key
        self.reader = ReaderAtTime(client, Keys())
        self._types = [frozenset(types) for types, _ in scenario.workers]
        self._idle = [slots for _, slots in scenario.workers]
        self._fits = Counter[str]()
        for types, slots in scenario.workers:
            self._fits.update(dict.fromkeys(types, slots))
        self._lanes: dict[tuple[str, str], list[tuple[int, str, Job]]] = defaultdict(list)
        self._running: list[tuple[int, int, int, Job]] = []
        self._fence = 0
        self._learned: dict[str, RunTime] = defaultdict(RunTime)
        self._usual_us: dict[str, float] = {}
        self._published, self._ended, self._notes = Counter[str](), Counter[str](), deque[Any](maxlen=15)
        client.flushall()
        self._pipe = client.pipeline(transaction=False)
        for nth, (types, slots) in enumerate(scenario.workers):
            profile, worker = f"p{nth}", f"w{nth}"
            self._pipe.hset(self._key("profiles"), profile, " ".join(sorted(types)))
            self._pipe.hset(self._key("worker", worker), mapping={"profile": profile, "slots": slots, "name": worker})
            self._pipe.zadd(self._key("heartbeats"), {worker: START_US})
            for type_ in types:
                self._pipe.zadd(self._key("serving", type_), {profile: len(types)})
        self._pipe.hset(self._key("capacity"), mapping=dict(self._fits))

    def run(self, max_reports: int) -> Outcome:
        """Return the outcome of up to about *max_reports* reports, evenly chosen."""
        jobs, outcome = self._scenario.jobs, Outcome()
        reports = sorted(
            (job.due_us - BEFORE_US, job.number, job)
            for job in jobs
            if job.due_us is not None and job.due_us - BEFORE_US >= job.at_us
        )
        reports = reports[:: max(1, len(reports) // max_reports)]
        never_us = 1 << 62
        arrived = reported = 0
        note_us = START_US
        while arrived < len(jobs) or self._running:
            arrives_us = jobs[arrived].at_us if arrived < len(jobs) else never_us
            ends_us = self._running[0][0] if self._running else never_us
            reports_us = reports[reported][0] if reported < len(reports) else never_us
            now_us = min(arrives_us, ends_us, reports_us)
            while note_us <= now_us:
                self._note_trend(note_us)
                note_us += _MINUTE_US
            if now_us == ends_us:
                self._end(now_us)
            elif now_us == arrives_us:
                self._publish(jobs[arrived])
                arrived += 1
            else:
                job = reports[reported][2]
                reported += 1
                if job.started_us is None:
                    self._report(job, now_us, outcome)
                continue
            self._claim(now_us)
        return outcome

    def _publish(self, job: Job) -> None:
        words = "" if job.size is None else f" s{round(job.size * 1_000_000)}"
        row = {"state": "pending", "type": job.type, "lane": job.lane, "enqueued": job.at_us, "name": job.task}
        if job.due_us is not None or words:
            row["due"] = f"{'-' if job.due_us is None else job.due_us}{words}"
        if job.head_us:
            row["head"] = job.head_us
        self._pipe.hset(self._key("job", job.id), mapping={**row, "task": job.id})
        self._pipe.zadd(self._key("lane", job.type, job.lane), {job.id: job.rank_us})
        if job.due_us is not None:
            self._pipe.zadd(self._key("due_times"), {job.id: job.due_us})
        heapq.heappush(self._lanes[job.type, job.lane], (job.rank_us, job.id, job))
        self._published[job.type] += 1

    def _claim(self, now_us: int) -> None:
        """Assign jobs to free slots: the best job first, then its most specialised slot."""
        weights = Weights()
        while True:
            best: tuple[tuple[int, int, str], tuple[str, str], int] | None = None
            for (type_, lane), waiting in self._lanes.items():
                fitting = [nth for nth, idle in enumerate(self._idle) if idle and type_ in self._types[nth]]
                if not waiting or not fitting:
                    continue
                mode, _, priority = lane.partition(".")
                age_us = now_us - waiting[0][0]
                total = score(int(priority), mode == "demand", age_us, self._fits[type_], weights).total
                order = (-total, waiting[0][0], waiting[0][1])
                if best is None or order < best[0]:
                    best = order, (type_, lane), min(fitting, key=lambda nth: (len(self._types[nth]), nth))
            if best is None:
                return
            _, where, worker = best
            _, _, job = heapq.heappop(self._lanes[where])
            self._idle[worker] -= 1
            self._fence += 1
            job.started_us, job.worker, job.fence = now_us, worker, self._fence
            heapq.heappush(self._running, (now_us + job.took_us, self._fence, worker, job))
            self._pipe.zrem(self._key("lane", job.type, job.lane), job.id)
            self._pipe.zrem(self._key("due_times"), job.id)
            self._pipe.hset(self._key("claims", f"w{worker}"), job.id, self._fence)
            claimed = {"state": "claimed", "claimed": now_us, "started": now_us}
            self._pipe.hset(self._key("job", job.id), mapping=claimed)

    def _end(self, now_us: int) -> None:
        _, _, worker, job = heapq.heappop(self._running)
        self._idle[worker] += 1
        learned = self._learned[job.task]
        learned.add(job.size, job.took_us)
        learned.last_us = now_us
        self._pipe.hset(self._key("run_times"), job.task, learned.text)
        usual_us = self._usual_us.get(job.type)
        usual_us = job.took_us if usual_us is None else usual_us + (job.took_us - usual_us) / AVERAGED_OVER
        self._usual_us[job.type] = usual_us
        self._pipe.hset(self._key("durations"), job.type, int(usual_us))
        self._pipe.hdel(self._key("claims", f"w{worker}"), job.id)
        self._pipe.unlink(self._key("job", job.id))
        self._ended[job.type] += 1

    def _note_trend(self, now_us: int) -> None:
        waiting = Counter[str]()
        for (type_, _), jobs in self._lanes.items():
            waiting[type_] += len(jobs)
        rows = {type_: [waiting[type_], self._published[type_], self._ended[type_]] for type_ in self._fits}
        self._pipe.lpush(self._key("trend"), json.dumps({"at_us": now_us, "types": rows}))
        self._pipe.ltrim(self._key("trend"), 0, 14)

    def _report(self, job: Job, now_us: int, outcome: Outcome) -> None:
        heads: dict[str, list[str]] = defaultdict(list)
        for (type_, lane), jobs in self._lanes.items():
            if jobs:
                heads[type_] += [lane, str(jobs[0][0]), jobs[0][1]]
        self._pipe.delete(self._key("heads"))
        for type_, words in heads.items():
            self._pipe.hset(self._key("heads"), type_, " ".join(words))
        for type_, number in self._published.items():
            self._pipe.hset(self._key("metrics", type_), mapping={"published": number, "done 00": self._ended[type_]})
        for nth, (_, slots) in enumerate(self._scenario.workers):
            self._pipe.hset(self._key("slots"), f"p{nth}", slots)
            self._pipe.hset(self._key("free_slots"), f"p{nth}", self._idle[nth])
        self._pipe.execute()
        self.reader.at_us = now_us
        named = {late.job_id: late for late in read_due(self.reader).late}
        outcome.asked.append(job)
        if job.id in named:
            outcome.named.add(job.number)
            outcome.late[job.number] = named[job.id]
        if self._is_late_naively(job):
            outcome.naively.add(job.number)

    def _is_late_naively(self, job: Job) -> bool:
        competing = {type_ for types in self._types if job.type in types for type_ in types}
        work_us = sum(
            self._usual_us.get(type_, SECOND_US) * sum(rank_us < job.rank_us for rank_us, _, _ in jobs)
            for (type_, _), jobs in self._lanes.items()
            if type_ in competing
        )
        return work_us / self._fits[job.type] > BEFORE_US


def scenarios(length: int) -> Iterator[Scenario]:
    """Yield the scenarios, with about *length* jobs each."""
    for name, build in SCENARIOS.items():
        scenario = build(name, random.Random(name), length)
        scenario.jobs.sort(key=lambda job: job.at_us)
        for number, job in enumerate(scenario.jobs):
            job.number = number
        yield scenario


def _job(
    at_s: float, type_: str, task: str, took_s: float, size: float | None, within_s: float | None, lane: str
) -> Job:
    at_us = START_US + round(at_s * SECOND_US)
    due_us = None if within_s is None else at_us + round(within_s * SECOND_US)
    return Job(at_us, type_, task, max(1_000, round(took_s * SECOND_US)), lane, size, due_us)


#: Draws type, task, run time (s), size and lane of a job.
Draw = Callable[[random.Random], tuple[str, str, float, float | None, str]]


def _with_batches(
    scenario: Scenario, rng: random.Random, length: int, draw: Draw, *, load: float, batch: float
) -> Scenario:
    """Add a steady *load*, and every ten minutes a batch whose jobs are due 65 to 240 s later.

    A batch has up to *batch* times the work that all slots do in 240 s.
    """
    slots = sum(number for _, number in scenario.workers)
    mean_s = sum(draw(rng)[2] for _ in range(20_000)) / 20_000
    at_s, next_batch_s = 0.0, 300.0
    while len(scenario.jobs) < length:
        at_s += rng.expovariate(load * slots / mean_s)
        type_, task, took_s, size, lane = draw(rng)
        within_s = rng.uniform(65, 240) if rng.random() < 0.05 else None
        scenario.jobs.append(_job(at_s, type_, task, took_s, size, within_s, lane))
        if at_s >= next_batch_s:
            next_batch_s += 600
            for _ in range(round(rng.uniform(0.1, batch) * 240 * slots / mean_s)):
                type_, task, took_s, size, lane = draw(rng)
                published_s = at_s + rng.uniform(0, 5)
                scenario.jobs.append(_job(published_s, type_, task, took_s, size, rng.uniform(65, 240), lane))
    return scenario


def _pool_with_sizes(name: str, rng: random.Random, length: int) -> Scenario:
    def draw(rng: random.Random) -> tuple[str, str, float, float | None, str]:
        size = rng.lognormvariate(0, 1)
        return "a", "render", 1.2 * size * rng.lognormvariate(0, 0.35), size, "queued.0"

    return _with_batches(Scenario(name, [(("a",), 8)]), rng, length, draw, load=0.6, batch=1.3)


def _specialists(name: str, rng: random.Random, length: int) -> Scenario:
    def draw(rng: random.Random) -> tuple[str, str, float, float | None, str]:
        type_, base_s = rng.choices((("a", 1.5), ("b", 3.0), ("c", 2.0)), (5, 4, 1.5))[0]
        lane = f"{'demand' if rng.random() < 0.05 else 'queued'}.{6 if rng.random() < 0.1 else 5}"
        return type_, f"task-{type_}", base_s * rng.lognormvariate(-0.1, 0.5), None, lane

    workers = [(("a",), 4), (("b",), 2), (("a", "b"), 3), (("a", "b", "c"), 2)]
    return _with_batches(Scenario(name, workers), rng, length, draw, load=0.55, batch=2.0)


def _short_and_long(name: str, rng: random.Random, length: int) -> Scenario:
    def draw(rng: random.Random) -> tuple[str, str, float, float | None, str]:
        task, base_s = rng.choices((("short", 0.1), ("middle", 2.0), ("long", 60.0)), (60, 35, 5))[0]
        return "a", task, base_s * rng.lognormvariate(-0.06, 0.35), None, "queued.0"

    return _with_batches(Scenario(name, [(("a",), 16)]), rng, length, draw, load=0.6, batch=1.1)


def _waves(name: str, rng: random.Random, length: int) -> Scenario:
    """A load that rises and falls within half an hour. Two in five jobs have a due time, so that many compete."""
    scenario, at_s = Scenario(name, [(("a",), 8)]), 0.0
    while len(scenario.jobs) < length:
        at_s += rng.expovariate(8 / 2.0 * (1 + 0.4 * math.sin(at_s / 1_800 * 2 * math.pi)))
        took_s, within_s = 2.0 * rng.lognormvariate(-0.125, 0.5), None
        if rng.random() < 0.4:
            within_s = rng.uniform(65, 240)
        scenario.jobs.append(_job(at_s, "a", "convert", took_s, None, within_s, "queued.0"))
    return scenario


SCENARIOS: dict[str, Callable[[str, random.Random, int], Scenario]] = {
    "8 slots, sizes known": _pool_with_sizes,
    "three types, specialists": _specialists,
    "tasks of 0.1, 2 and 60 s": _short_and_long,
    "waves above capacity": _waves,
}


def _what_happened(scenario: Scenario, job: Job) -> str:
    """Return the facts of a reason, counted after the end: the jobs that started while it waited after the report."""
    assert job.due_us is not None
    assert job.started_us is not None
    profiles = [frozenset(types) for types, _ in scenario.workers]
    slots = sum(number for types, number in scenario.workers if job.type in types)
    before = [
        other
        for other in scenario.jobs
        if other is not job
        and job.due_us - BEFORE_US <= (other.started_us or 0) <= job.started_us
        and job.type in profiles[other.worker]
        and (other.started_us, other.fence) < (job.started_us, job.fence)
    ]
    work_s = sum(other.took_us for other in before) / SECOND_US
    late_s = (job.started_us - job.due_us) / SECOND_US
    return (
        f"{late_s:.0f} s late: {slots} slots, {len(before)} jobs started before it, with {work_s / 60:.1f} min of work"
    )


#: Writes jobs from ARGV[1] on, up to ARGV[2] of ARGV[3]: of three types in nine lanes, of 50 tasks. Every 200th has a
#: due time within an hour.
_MANY = """
local base, now, total = KEYS[1], tonumber(ARGV[4]), tonumber(ARGV[3])
for n = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do
    local id, type = string.format("job-%07d", n), "t" .. n % 3
    local lane = ({ "queued.0", "queued.5", "demand.5" })[math.floor(n / 3) % 3 + 1]
    local enqueued, its = now - (total - n) * 500, base .. "job:" .. id
    redis.call("HSET", its, "state", "pending", "type", type, "lane", lane, "enqueued",
        string.format("%.0f", enqueued), "name", "task" .. n % 50, "task", id)
    local rank = enqueued
    if n % 200 == 0 then
        local due = now + (n * 7919 % 3600 + 1) * 1000000
        local head = math.max(0, math.min(256000000, enqueued + 256000000 - due))
        redis.call("HSET", its, "due", string.format("%.0f s2000000", due))
        if head > 0 then redis.call("HSET", its, "head", string.format("%.0f", head)) end
        rank = enqueued - head
        redis.call("ZADD", base .. "lane:key:due_times", string.format("%.0f", due), id)
    end
    redis.call("ZADD", base .. "lane:" .. type .. ":" .. lane, string.format("%.0f", rank), id)
end
"""


def measure_time(client: "redis.Redis[bytes]", number: int) -> str:
    """Return the time of a report with *number* pending jobs and 320 slots."""
    client.flushall()
    keys = Keys()
    reader = Reader(client, keys)
    now_us, key = reader.now_us(), keys.key
    for first in range(0, number, 20_000):
        client.eval(_MANY, 1, keys.base, first, min(number, first + 20_000), number, now_us)
    for type_ in ("t0", "t1", "t2"):
        heads = []
        for lane in ("queued.0", "queued.5", "demand.5"):
            ((job_id, rank_us),) = client.zrange(key("lane", type_, lane), 0, 0, withscores=True)
            heads += [lane, f"{rank_us:.0f}", job_id.decode()]
        client.hset(key("heads"), type_, " ".join(heads))
        client.hset(key("capacity"), type_, 200)
        client.hset(key("durations"), type_, 2 * SECOND_US)
    learned = RunTime()
    for took_s in range(1, 11):
        learned.add(took_s, took_s * SECOND_US)
    client.hset(key("run_times"), mapping={f"task{nth}": learned.text for nth in range(1_000)})
    with client.pipeline(transaction=False) as pipe:
        for nth in range(40):
            profile, types = f"p{nth % 4}", ("t0", "t1", "t0 t1", "t0 t1 t2")[nth % 4]
            pipe.hset(key("profiles"), profile, types)
            pipe.hset(key("worker", f"w{nth}"), mapping={"profile": profile, "slots": 8, "name": f"w{nth}"})
            pipe.zadd(key("heartbeats"), {f"w{nth}": now_us})
            for slot in range(8):
                job_id = f"running-{nth}-{slot}"
                pipe.hset(key("claims", f"w{nth}"), job_id, 8 * nth + slot + 1)
                row = {"state": "claimed", "type": types[:2], "lane": "queued.0", "enqueued": now_us - 9 * SECOND_US}
                pipe.hset(key("job", job_id), mapping={**row, "name": "task1", "claimed": now_us, "started": now_us})
        pipe.execute()
    wall_ms, cpu_ms = [], []
    for _ in range(40):
        began_s, cpu_s = time.perf_counter(), time.process_time()
        report = read_due(reader)
        wall_ms.append((time.perf_counter() - began_s) * 1_000)
        cpu_ms.append((time.process_time() - cpu_s) * 1_000)
    return (
        f"{number:,} pending jobs, {report.waiting:,} of them with a due time to come, {len(report.late):,} named: "
        f"{min(wall_ms):.0f} ms at best, median {statistics.median(wall_ms):.0f} ms; of these "
        f"{min(cpu_ms):.0f} ms at best in the process, median {statistics.median(cpu_ms):.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs of each scenario")
    parser.add_argument("--reports", type=int, default=1_500, help="reports of each scenario, about")
    parser.add_argument("--only", default="", help="a scenario whose name has this part")
    parser.add_argument("--reasons", type=int, default=0, help="print this many reasons, with what happened")
    parser.add_argument("--time", type=int, default=0, help="measure only the time, with this many pending jobs")
    given = parser.parse_args()
    rows = ["| scenario | reports | late | named | precision | recall | naive precision | naive recall |"]
    rows.append("|---|---|---|---|---|---|---|---|")
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        if given.time:
            print(measure_time(client, given.time))
            return
        for scenario in scenarios(given.jobs):
            if given.only not in scenario.name:
                continue
            began_s = time.perf_counter()
            outcome = Fleet(scenario, client).run(given.reports)
            late, reports = len(outcome.late_jobs), len(outcome.asked)
            figures = [
                f"{ratio:.0%}"
                for named in (outcome.named, outcome.naively)
                for ratio in (outcome.precision(named), outcome.recall(named))
            ]
            share = f"{late:,} ({late / max(1, reports):.0%})"
            rows.append(f"| {' | '.join([scenario.name, f'{reports:,}', share, str(len(outcome.named)), *figures])} |")
            print(rows[-1], f"{time.perf_counter() - began_s:.0f} s", flush=True)
            for number in list(outcome.late)[:: max(1, len(outcome.late) // max(1, given.reasons))]:
                if given.reasons:
                    print(
                        f"  {outcome.late[number].why}\n    in fact {_what_happened(scenario, scenario.jobs[number])}"
                    )
    print("\n".join(rows))


if __name__ == "__main__":
    main()
