"""``celery affinity lab optimum``: how far a schedule is from what a clairvoyant scheduler could reach."""

from pathlib import Path

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ...errors import AffinityError
from ...lab import weighing
from ...lab.engines import Engine, scheduled
from ...lab.scenario import scenario_of
from ...versions import install_with
from ..broker import AS_JSON, show
from . import text_of_optimum as text
from .parts import ENGINE, TRACE, errors_in_a_line, progress, trace_in


@click.command(cls=CeleryCommand)
@TRACE
@click.option(
    "--weights",
    type=click.Choice([*weighing.WEIGHTS]),
    default="equal",
    show_default=True,
    help="What a second of waiting counts: the same for all jobs, or priority + 1, and 4 more on demand.",
)
@click.option(
    "--bins",
    type=click.IntRange(16, 16_384),
    default=8_192,
    show_default=True,
    help="Most steps of time of the lower bound: more make it closer, and take longer. A long trace gets fewer.",
)
@ENGINE
@AS_JSON
@click.pass_context
@handle_preload_options
def optimum(_: click.Context, trace: Path, weights: str, bins: int, engine: Engine, as_json: bool) -> None:
    """Compare the waits in TRACE with what a scheduler could reach that knew all jobs and how long they take.

    Nobody knows the best schedule of many jobs. So there are two bounds: the best one that was found waits at most the
    upper bound, and no schedule waits less than the lower bound.
    """
    with errors_in_a_line():
        found = trace_in(trace)
        try:
            # scipy and numpy are in the extra [lab]
            from ...lab.optimum import optimum as compared
            from ...lab.optimum import steps_in
        except ModuleNotFoundError as exc:
            raise AffinityError(f"{exc.name} is missing: {install_with('lab')}") from exc
        with progress(len(found.jobs), "replaying") as steps:
            replayed, _engine = scheduled(scenario_of(found), engine, steps)
        try:
            with progress(steps_in(len(found.jobs), bins), "bounding", update_every=1) as steps:
                report = compared(found, replayed, weighing.WEIGHTS[weights], bins=bins, progress=steps)
        except ValueError as exc:
            raise AffinityError(str(exc)) from exc
    show(report, text.optimum, json=as_json)
