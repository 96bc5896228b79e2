"""``celery affinity lab whatif``: a record is scheduled with other slots, settings, rates or priorities."""

from pathlib import Path

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ...lab import change_words, plot, waits
from ...lab import whatif as asked
from ...lab.engines import Engine
from ...lab.scenario import scenario_of
from ..broker import AS_JSON, show
from . import text_of_whatif as text
from .parts import ENGINE, SEED, TRACE, errors_in_a_line, progress, trace_in


@click.command(cls=CeleryCommand)
@TRACE
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="age_weight=32, or limits.type:pdf=5.")
@click.option("--add", multiple=True, metavar="[TYPES]:SLOTS", help="A further worker, such as '[pdf,xls]:2'.")
@click.option("--remove", multiple=True, metavar="WORKER", help="A worker of the trace that is not there.")
@click.option("--rate", "rates", multiple=True, metavar="TYPE=FACTOR", help="So many times the jobs, such as pdf=1.5.")
@click.option("--priority", "priorities", multiple=True, metavar="TYPE=N", help="The priority of all jobs of a type.")
@click.option(
    "--seed", default=1, show_default=True, type=SEED, help="Chooses the jobs that --rate repeats, or leaves out."
)
@click.option("--plot", "plot_to", type=click.Path(dir_okay=False, path_type=Path), help="Write a plot of waits (SVG).")
@ENGINE
@AS_JSON
@click.pass_context
@handle_preload_options
def whatif(
    _: click.Context,
    trace: Path,
    settings: tuple[str, ...],
    add: tuple[str, ...],
    remove: tuple[str, ...],
    rates: tuple[str, ...],
    priorities: tuple[str, ...],
    seed: int,
    plot_to: Path | None,
    engine: Engine,
    as_json: bool,
) -> None:
    """Schedule the jobs of TRACE as they came, and once more with changes: who would wait less, and who longer.

    Each option may be given several times. Both schedules are the engine's: what was recorded is what `lab replay`
    compares with.
    """
    if not any((settings, add, remove, rates, priorities)):
        raise click.UsageError("give some of --set, --add, --remove, --rate and --priority")
    with errors_in_a_line():
        scenario = scenario_of(trace_in(trace))
        changes = change_words.read(
            scenario, settings=settings, add=add, remove=remove, rates=rates, priorities=priorities, seed=seed
        )
        with progress(2 * len(scenario.arrivals), "scheduling") as steps:
            before, after, chosen = asked.both(scenario, changes, engine, steps)
        if plot_to is not None:
            words = " ".join((*settings, *add, *(f"without {name}" for name in remove), *rates, *priorities))
            curves = waits.waits_by_job(before).values(), waits.waits_by_job(after).values()
            plot_to.write_text(plot.svg(*curves, f"waits with {words}"), encoding="utf-8")
    show(asked.compared(before, after, chosen), text.whatif, json=as_json)
