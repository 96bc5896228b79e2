"""Measures the time from the publish of a job to its start on an idle worker."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.support.processes import Process

from .bench import Bench, BenchmarkError, Publisher
from .ledger import Ledger
from .systems import FLOOR, STOCK, Variant

_WARM_UP = 20


@dataclass(frozen=True)
class IdleWorker:
    """An idle worker and its client, which share a separate database."""

    variant: Variant
    process: Process
    publisher: Publisher
    ledger: Ledger

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def baseline(self) -> str | None:
        return self.variant.baseline


def compared(variants: Sequence[Variant]) -> list[Variant]:
    """Return the workers whose latency is compared. Prefetched jobs make no difference here."""
    strict = [variant for variant in variants if variant.late and not variant.lookahead and variant.system != FLOOR]
    return [variant for variant in strict if variant.system != STOCK or variant.prefetch == 1]


@contextmanager
def idle_workers(bench: Bench, variants: Sequence[Variant]) -> Iterator[list[IdleWorker]]:
    """Run all workers at the same time, so that no round has to start one. All but the measured one are idle."""
    with ExitStack() as stack:
        workers = []
        for number, variant in enumerate(variants):
            ledger = Ledger(bench.directory / f"ledger-{number}")
            process = stack.enter_context(bench.worker(variant, number, ledger))
            workers.append(IdleWorker(variant, process, bench.publisher(variant, number), ledger))
        for idle in workers:
            idle.publisher.publish(_WARM_UP)
            bench.wait_for_tasks(idle.process, _WARM_UP, idle.ledger)
        yield workers


def latency(worker: IdleWorker, jobs: int) -> dict[str, float]:
    """Publish jobs one at a time. Return quantiles of the times from the call to the task's first line, in ms."""
    published_ns = worker.publisher.publish_one_at_a_time(jobs, worker.ledger)
    started_ns = {record.number: record.ns for record in worker.ledger.records()}
    if len(started_ns) != jobs or len(worker.ledger) != jobs:
        raise BenchmarkError(f"{worker.name}: {len(worker.ledger)} runs of {len(started_ns)} tasks, not of {jobs}")
    return quantiles([started_ns[number] - ns for number, ns in enumerate(published_ns)])


def quantiles(times_ns: Sequence[int]) -> dict[str, float]:
    times_ms = sorted(ns / 1e6 for ns in times_ns)
    return {f"p{percent}": times_ms[(len(times_ms) - 1) * percent // 100] for percent in (50, 90, 99)}
