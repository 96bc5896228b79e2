"""How long a job takes from its publish to its start on an idle worker."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.support.processes import Process

from .bench import Bench, BenchmarkError, Publisher
from .ledger import Ledger
from .systems import FLOOR, STOCK, Variant

_WARM_UP = 20


@dataclass(frozen=True)
class Post:
    """A worker that waits for jobs, and a client that sends them, in a database of their own."""

    variant: Variant
    worker: Process
    publisher: Publisher
    ledger: Ledger

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def beside(self) -> str | None:
        return self.variant.beside


def compared(variants: Sequence[Variant]) -> list[Variant]:
    """Return the workers whose latency is compared: what they may hold beyond their slots makes no difference here."""
    alike = [each for each in variants if each.late and not each.lookahead and each.system != FLOOR]
    return [each for each in alike if each.system != STOCK or each.prefetch == 1]


@contextmanager
def posts(bench: Bench, variants: Sequence[Variant]) -> Iterator[list[Post]]:
    """Run all workers at once: but for one at a time they are idle, and none has to start for a round."""
    with ExitStack() as stack:
        found = []
        for number, variant in enumerate(variants):
            ledger = Ledger(bench.directory / f"ledger-{number}")
            worker = stack.enter_context(bench.worker(variant, number, ledger))
            found.append(Post(variant, worker, bench.publisher(variant, number), ledger))
        for post in found:
            post.publisher.publish(_WARM_UP)
            bench.wait_for_tasks(post.worker, _WARM_UP, post.ledger)
        yield found


def latency(post: Post, jobs: int) -> dict[str, float]:
    """Return the times of jobs that are sent one at a time, from before the call to the task's first line, ms."""
    published_ns = post.publisher.publish_one_at_a_time(jobs, post.ledger)
    started_ns = {record.number: record.ns for record in post.ledger.records()}
    if len(started_ns) != jobs or len(post.ledger) != jobs:
        raise BenchmarkError(f"{post.name}: {len(post.ledger)} runs of {len(started_ns)} tasks, not of {jobs}")
    return quantiles([started_ns[number] - ns for number, ns in enumerate(published_ns)])


def quantiles(times_ns: Sequence[int]) -> dict[str, float]:
    times_ms = sorted(ns / 1e6 for ns in times_ns)
    return {f"p{percent}": times_ms[(len(times_ms) - 1) * percent // 100] for percent in (50, 90, 99)}
