"""Measures the requests and the CPU time of idle workers."""

import time
from collections.abc import Sequence
from contextlib import ExitStack

from .bench import Bench
from .results import Part
from .systems import Variant

_WARM_UP = 10

#: Seconds before the measurement: a worker can still send reports after its last task.
_SETTLES_S = 3.0


def idle(variants: Sequence[Variant], seconds: float, rounds: int, executable: str | None) -> Part:
    """Measure requests and CPU time per second, for all workers at the same time. Each has its own server."""
    part = Part()
    with ExitStack() as stack:
        meters = []
        for variant in variants:
            bench = stack.enter_context(Bench(executable))
            worker = stack.enter_context(bench.worker(variant))
            bench.publisher(variant).publish(_WARM_UP)
            bench.wait_for_tasks(worker, _WARM_UP)
            meters.append(bench.meter(worker.pid))
        time.sleep(_SETTLES_S)
        for _ in range(rounds):
            before = [meter.read() for meter in meters]
            time.sleep(seconds)
            for variant, meter, first in zip(variants, meters, before, strict=True):
                part.add(variant, meter.read().a_second_since(first))
    return part
