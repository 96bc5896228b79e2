"""``celery affinity lab advise``: the smallest fleet, and the settings, that reach targets of waits."""

from pathlib import Path

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ...lab import advise as advising
from ...lab import targets as wanted
from ...lab.engines import Engine, scheduled
from ...lab.scenario import scenario_of
from ..broker import AS_JSON, show
from . import text_of_advise as text
from .parts import ENGINE, SEED, TRACE, errors_in_a_line, progress, trace_in


@click.command(cls=CeleryCommand)
@TRACE
@click.option(
    "--target",
    "targets",
    multiple=True,
    required=True,
    metavar="WHOSE:pN<TIME",
    help="'pdf:p95<5s': 95 % of pdf jobs wait less than 5 s. Also on-demand, queued, all; times in ms, s, m or h.",
)
@click.option(
    "--simulations",
    type=click.IntRange(30, 10_000),
    default=advising.MOST_SIMULATIONS,
    show_default=True,
    help="Most schedules that are made: each takes as long as a replay.",
)
@click.option(
    "--seed", default=1, show_default=True, type=SEED, help="Draws the days over which the range of a wait is taken."
)
@ENGINE
@AS_JSON
@click.pass_context
@handle_preload_options
def advise(
    _: click.Context,
    trace: Path,
    targets: tuple[str, ...],
    simulations: int,
    seed: int,
    engine: Engine,
    as_json: bool,
) -> None:
    """Find the fewest slots, and the settings, with which the jobs of TRACE would have reached all targets.

    --target may be given several times. What is found was scheduled, and reaches the targets. (3 s..6 s) is the range
    over ten days that are made of the parts of TRACE.
    """
    with errors_in_a_line():
        scenario = scenario_of(trace_in(trace))
        types = {each.type for each in scenario.arrivals}
        asked = [wanted.parse(each, types) for each in targets]
        with progress(simulations, "simulating", update_every=1) as steps:
            found = advising.advise(
                scenario,
                asked,
                lambda changed: scheduled(changed, engine).schedule,
                most_simulations=simulations,
                seed=seed,
                progress=steps,
            )
    show(found, text.advise, json=as_json)
