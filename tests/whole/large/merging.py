"""The cost of merged calls compared with plain jobs: many keys with one call each, and one key with many calls.

Both are measured in turn, so that disturbances affect both. Times are the server's CPU time.
"""

import math
import statistics
import time
from typing import NamedTuple

import redis

from celery_affinity.lua.library import server_function
from celery_affinity.scheduler.messages import EndArguments
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.job_record import NewJob, with_suffix
from celery_affinity.schema.keys import Keys

from .fleet import BATCH, LargeFleet

#: The default bounds of a run, and a bound that lets one run take all calls.
MAX_CALLS, MAX_BYTES, UNBOUNDED = 1_000, 1_000_000, 10**9

ROUNDS = 5
_CLAIMS = 200
_BYTES = 700  # size of a Celery message with a small task


class Figure(NamedTuple):
    """A value and its maximum."""

    name: str
    reached: float
    goal: float

    @property
    def is_reached(self):
        return self.reached <= self.goal


class Kind(NamedTuple):
    """Jobs of one type in a database; *rules* maps a job's number to its rules."""

    client: redis.Redis
    rules: object

    def publish(self, first, count):
        scheduler = Scheduler(self.client, Keys())
        scheduler.load()
        for begin in range(first, first + count, BATCH):
            with self.client.pipeline(transaction=False) as pipe:
                for number in range(begin, min(begin + BATCH, first + count)):
                    pipe.execute_command(*scheduler.command((server_function("publish"), self._job(number))))
                pipe.execute()

    def _job(self, number):
        rules = self.rules(number)
        job_id = with_suffix(f"job{number}", rules)
        message = "x" * _BYTES
        return NewJob(job_id, "type0", message, task_id=f"task-{number}", task_name="proj.plan", rules=rules).arguments

    def cpu_us(self, call, count):
        """Return the server's CPU time in µs per item of *call*, which handles *count* items."""
        before = self._cpu_s()
        call()
        return 1e6 * (self._cpu_s() - before) / count

    def _cpu_s(self):
        found = self.client.info("cpu")
        return found["used_cpu_user"] + found["used_cpu_sys"]

    def used_bytes(self):
        return self.client.info("memory")["used_memory"]

    def forget(self):
        """Empty the database synchronously; otherwise its memory is freed in the background."""
        self.client.execute_command("FLUSHDB", "SYNC")


def _plain(_number):
    return ""


def _own_key(number):
    return f"merge=k{number} most={MAX_CALLS} bytes={MAX_BYTES}"


def _one_key(most, most_bytes):
    return lambda _number: f"merge=k most={most} bytes={most_bytes}"


def many_keys(clients, keys):
    """Return the costs of publish, release with claim, and memory, with one call for each of *keys* keys."""
    kinds = [Kind(client, rules) for client, rules in zip(clients, (_plain, _own_key), strict=True)]
    held_bytes = []
    for kind in kinds:
        kind.forget()
        before = kind.used_bytes()
        kind.publish(0, keys)
        held_bytes.append(kind.used_bytes() - before)
    published = [
        [kind.cpu_us(lambda kind=kind, first=keys + nth * BATCH: kind.publish(first, BATCH), BATCH) for kind in kinds]
        for nth in range(ROUNDS)
    ]
    workers = [_Worker(kind) for kind in kinds]
    calls = min(_CLAIMS, keys // ROUNDS)
    claimed = [
        [worker.kind.cpu_us(lambda worker=worker: worker.run(calls), calls) for worker in workers]
        for _ in range(ROUNDS)
    ]
    what = f"{keys:,} keys with a call each"
    return [
        Figure(f"{what}: `publish`, x plain", _ratio(published), 1.3),
        Figure(f"{what}: `release` and claim, x plain", _ratio(claimed), 1.3),
        Figure(f"{what}: memory of a call, x plain", _ratio([held_bytes]), 1.0),
    ]


def one_key(clients, calls):
    """Return the number of runs of *calls* calls with one key, and the costs of a publish and of memory."""
    figures = []
    for name, most, most_bytes in (
        ("", MAX_CALLS, MAX_BYTES),
        (", `most` and `most_bytes` raised", UNBOUNDED, UNBOUNDED),
    ):
        kinds = [Kind(clients[0], _plain), Kind(clients[1], _one_key(most, most_bytes))]
        published, held_bytes, seconds = [], [], []
        for _ in range(ROUNDS):
            published.append([])
            held_bytes.append([])
            for kind in kinds:
                worker = _burst(kind)
                before, began_s = kind.used_bytes(), time.perf_counter()
                published[-1].append(kind.cpu_us(lambda kind=kind: kind.publish(1, calls - 1), calls - 1))
                seconds.append(time.perf_counter() - began_s)
                held_bytes[-1].append(kind.used_bytes() - before)
        runs = worker.runs()  # the last burst is one of merged calls
        assert sum(runs) == calls, f"of {calls} calls {sum(runs)} ran"
        what = f"{calls:,} calls of one key within {max(seconds[1::2]):.1f} s{name}"
        asked = max(math.ceil(calls / most), math.ceil(calls / (most_bytes // _BYTES)))
        figures += [
            Figure(f"{what}: runs", len(runs), asked + 1),
            Figure(f"{what}: `publish`, x plain", _ratio(published), 1.5),
            Figure(f"{what}: memory of a call, x plain", _ratio(held_bytes), 1.0),
        ]
    return figures


def _burst(kind):
    """Return a worker that has claimed the only job."""
    kind.forget()
    kind.publish(0, 1)
    return _Worker(kind)


def _ratio(rounds):
    """Return the ratio of merged calls to plain jobs, as the median over rounds."""
    assert all(value > 0 for each in rounds for value in each), f"not measured: {rounds}"
    return statistics.median(merged / plain for plain, merged in rounds)


class _Worker:
    """A worker with one slot."""

    def __init__(self, kind):
        self.kind = kind
        self._fleet = LargeFleet(kind.client, 1)
        self._sequence = 0
        self._fleet.join("measured", self._fleet.types, 1)
        ((self._held, self._fence),) = self._fleet.claims("measured")

    def run(self, calls):
        for _ in range(calls):
            self._next()

    def runs(self):
        """Run all waiting calls and report their ends; return the number of calls per run."""
        scheduler, found = self._fleet.scheduler, []
        while self._held:
            page = scheduler.batch_calls(self._held, fence=self._fence)
            found.append(1)
            while page and page.callers:
                scheduler.ack_batch_reports(self._held, [each.job_id for each in page.callers], fence=self._fence)
                found[-1] += len(page.callers)
                page = scheduler.batch_calls(self._held, fence=self._fence)
            self._next()
        return found

    def _next(self):
        self._sequence += 1
        ended = EndArguments(self._held, self._fence, "acked")
        scheduler = self._fleet.scheduler
        claims = scheduler.release_and_claim("measured", acks=[], ends=[ended], sequence=self._sequence, inline=True)
        self._held, self._fence = (claims[0].job_id, claims[0].fence) if claims else ("", "")


def as_markdown(figures):
    rows = [("what", "goal", "reached", ""), ("---", "---:", "---:", "---:")]
    for each in figures:
        verdict = "ok" if each.is_reached else "missed"
        rows.append((each.name, f"<= {each.goal:g}", f"{each.reached:.3g}", verdict))
    return "\n".join(["Merging:", "", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"
