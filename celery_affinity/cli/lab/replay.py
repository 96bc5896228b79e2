"""``celery affinity lab replay``: the recorded arrivals and durations are scheduled again."""

from pathlib import Path

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ...lab import replay as replays
from ...lab.engines import Engine
from ..broker import AS_JSON, show
from . import text_of_replay as text
from .parts import ENGINE, TRACE, errors_in_a_line, progress, trace_in


@click.command(cls=CeleryCommand)
@TRACE
@ENGINE
@AS_JSON
@click.pass_context
@handle_preload_options
def replay(_: click.Context, trace: Path, engine: Engine, as_json: bool) -> None:
    """Schedule the jobs of TRACE again, and compare that with what was recorded.

    Fidelity is the share of claims that are made again, on workers of the recorded types and in the recorded order. If
    it is high, `lab whatif` can be trusted for this fleet.
    """
    with errors_in_a_line():
        record = replays.record_of(trace_in(trace))
        with progress(len(record.schedule.scenario.arrivals), "replaying") as steps:
            report = replays.replayed(record, engine, steps)
    show(report, text.replay, json=as_json)
