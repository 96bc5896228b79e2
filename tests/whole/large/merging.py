"""What merging costs beside plain jobs, on one server: very many keys with a call each, and one key with many calls.

A job and a call are measured in turn, so what disturbs the machine disturbs both. Times are the server's CPU time.
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

#: The bounds of a run as `Merge` has them if nothing is said, and so high that one run takes all.
MAX_CALLS, MAX_BYTES, UNBOUNDED = 1_000, 1_000_000, 10**9

ROUNDS = 5
_CLAIMS = 200
_BYTES = 700  # size of Celery's message of a small task


class Figure(NamedTuple):
    """A value, and the most that it may be."""

    name: str
    reached: float
    goal: float

    @property
    def is_reached(self):
        return self.reached <= self.goal


class Kind(NamedTuple):
    """Jobs of one type on a database of their own. *rules*: of the job with a number."""

    client: redis.Redis
    rules: object

    def publish(self, first, count):
        """Publish as fast as one client can."""
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
        """Return the server's CPU time of each of *count* that *call* does, µs."""
        before = self._cpu_s()
        call()
        return 1e6 * (self._cpu_s() - before) / count

    def _cpu_s(self):
        found = self.client.info("cpu")
        return found["used_cpu_user"] + found["used_cpu_sys"]

    def used_bytes(self):
        return self.client.info("memory")["used_memory"]

    def forget(self):
        """Empty the database at once: in the background, a server's usual way, the memory is freed later."""
        self.client.execute_command("FLUSHDB", "SYNC")


def _plain(_number):
    return ""


def _own_key(number):
    return f"merge=k{number} most={MAX_CALLS} bytes={MAX_BYTES}"


def _one_key(most, most_bytes):
    return lambda _number: f"merge=k most={most} bytes={most_bytes}"


def many_keys(clients, keys):
    """Return what a publish, and a release with its claim, take when as many keys have a call each; and the memory."""
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
        [worker.kind.cpu_us(lambda worker=worker: worker.go_on(calls), calls) for worker in workers]
        for _ in range(ROUNDS)
    ]
    what = f"{keys:,} keys with a call each"
    return [
        Figure(f"{what}: `publish`, x plain", _ratio(published), 1.3),
        Figure(f"{what}: `release` and claim, x plain", _ratio(claimed), 1.3),
        Figure(f"{what}: memory of a call, x plain", _ratio([held_bytes]), 1.0),
    ]


def one_key(clients, calls):
    """Return how many runs as many calls of one key are, what a publish of them takes, and their memory."""
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
        runs = worker.runs()  # of the last burst, which is one of calls that merge
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
    """Return a worker that has started the first job, as an idle one does, while nothing else waits."""
    kind.forget()
    kind.publish(0, 1)
    return _Worker(kind)


def _ratio(rounds):
    """Return the median of the rounds' ratios, each of a merged call to a plain job."""
    assert all(value > 0 for each in rounds for value in each), f"not measured: {rounds}"
    return statistics.median(merged / plain for plain, merged in rounds)


class _Worker:
    """A worker with one slot, which it fills."""

    def __init__(self, kind):
        self.kind = kind
        self._fleet = LargeFleet(kind.client, 1)
        self._sequence = 0
        self._fleet.join("measured", self._fleet.types, 1)
        ((self._held, self._fence),) = self._fleet.claims("measured")

    def go_on(self, calls):
        """End a job and have the next one, so many times."""
        for _ in range(calls):
            self._next()

    def runs(self):
        """Run all that waits, and return the number of calls of each run, all of which are told."""
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
    """Return a table of what was reached."""
    rows = [("what", "goal", "reached", ""), ("---", "---:", "---:", "---:")]
    for each in figures:
        verdict = "ok" if each.is_reached else "missed"
        rows.append((each.name, f"<= {each.goal:g}", f"{each.reached:.3g}", verdict))
    return "\n".join(["Merging:", "", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"
