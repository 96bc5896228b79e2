"""Measure the cost of a lab recording by switching the recording on and off within one drain.

The speed of a drain changes while it runs. The order of the turns is therefore on, off, off, on, and the first turn is
discarded.

The benchmark reads the recording like `celery affinity lab record`, in a process separate from the worker. The
measurement of a turn begins after the worker has noticed the switch.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from celery_affinity.scheduler import messages, recordings
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from .bench import Bench, BenchmarkError, print_progress
from .drain import check_each_ran_once
from .meter import Meter, per_task
from .results import Named, Part
from .systems import AFFINITY, SLOTS, Variant

#: Length of a turn in seconds, and the number of seconds until the worker has noticed the switch. The worker sends one
#: heartbeat per second.
_TURN_S, _NOTICES_S = 4.0, 1.5

#: Number of turns in a comparison.
_FOUR = 4

#: Seconds between two reads of the recording.
_PAUSE_S = 0.5


@dataclass(frozen=True)
class Recorded:
    """A worker that is recorded in half of the turns."""

    pool: str

    @property
    def name(self) -> str:
        return f"{self.pool}, {AFFINITY}, late acks, strict, recorded"

    @property
    def baseline(self) -> str:
        return f"{self.pool}, {AFFINITY}, late acks, strict, not recorded"


RECORDED = [Recorded(pool) for pool in SLOTS]


def measured(bench: Bench, subjects: Sequence[Recorded], rounds: int, tasks: int) -> Part:
    """Measure the rate and the CPU time of *tasks* tasks with and without a recording."""
    part = Part()
    for round_ in range(1, rounds + 1):
        for subject in subjects:
            turns = _turns(bench, Variant(AFFINITY, subject.pool, app="beating_app"), tasks)
            for is_recorded, figures in turns:
                part.add(Named(subject.name, subject.baseline) if is_recorded else Named(subject.baseline), figures)
            ratios = {
                name: part.ratio(subject.name, subject.baseline, name) or 0
                for name in ("rate", "worker_us", "server_us")
            }
            line = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
            print_progress(f"{round_}/{rounds}  {subject.name}: {len(turns) // 2} pairs; ratios so far: {line}")
    return part


def _turns(bench: Bench, variant: Variant, tasks: int) -> list[tuple[bool, dict[str, float]]]:
    """Return the measured turns of one drain in groups of four: with, without, without, with a recording."""
    bench.restock(variant, tasks)
    bench.ledger.clear()
    scheduler = Scheduler(bench.client, Keys())
    turns, rows = [], 0
    with bench.worker(variant) as worker:
        bench.wait_for_tasks(worker, 1)
        meter = bench.meter(worker.pid)
        _turn(bench, meter, scheduler, is_recorded=False)
        for is_recorded in itertools.cycle((True, False, False, True)):
            if len(bench.ledger) >= tasks:
                break
            figures, recorded = _turn(bench, meter, scheduler, is_recorded)
            rows += recorded
            turns.append((is_recorded, figures))
        bench.wait_for_tasks(worker, tasks)
    check_each_ran_once(bench.ledger.records(), tasks, variant.name)
    del turns[-1]  # the backlog ended during this turn
    whole = turns[: len(turns) // _FOUR * _FOUR]
    if not whole or not rows:
        raise BenchmarkError(f"{tasks} tasks take less than {_FOUR} turns of {_TURN_S} s, or no claim was recorded")
    return whole


def _turn(bench: Bench, meter: Meter, scheduler: Scheduler, is_recorded: bool) -> tuple[dict[str, float], int]:
    """Return the measured numbers of a turn, and the number of claims recorded during the turn."""
    ends_s, rows, after = time.monotonic() + _TURN_S, 0, "-"
    if is_recorded:
        recordings.begin_recording(scheduler, "bench", for_s=60, kept_s=0, instead=True)
    else:
        recordings.end_recording(scheduler, "bench")
    time.sleep(_NOTICES_S)
    before, tasks = meter.read(), len(bench.ledger)
    while time.monotonic() < ends_s:
        time.sleep(_PAUSE_S)
        for page in recordings.recording_pages(scheduler, "bench", after):
            after, rows = page.number, rows + len(messages.read_rows(page.claims))
        if after != "-":
            recordings.forget_pages(scheduler, "bench", after)
    now, ran = meter.read(), len(bench.ledger) - tasks
    rate = ran / (now.seconds - before.seconds)
    return {"rate": rate, **per_task(before, now, max(1, ran))}, rows
