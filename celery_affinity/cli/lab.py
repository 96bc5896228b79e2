"""``celery -A proj affinity lab ...``: record a fleet, replay the record, and simulate other slots and settings."""

import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from ..clock import SECOND_US
from ..errors import AffinityError, SettingError
from ..lab import advise as advisor
from ..lab import list_schedules, plot, trace_file, waits
from ..lab import replay as replay_module
from ..lab.changes import read_changes
from ..lab.recorder import Recorder
from ..lab.replay import ENGINES, Engine, compare_waits, record_of, run_engine, schedule_both
from ..lab.scenario import scenario_of
from ..lab.targets import parse_target
from ..lab.trace import OUTCOMES, PENDING, Trace
from ..lab.trace_file import read_trace
from ..publishing.app_config import settings_of
from ..reports.render import duration_text, pluralize, wrap_paragraph
from ..schema.keys import COHORT
from ..schema.values import MAX_COUNT
from ..settings.cohorts import DEFAULT
from ..versions import install_with
from . import lab_text
from .framework import check_app_conf, command, parse_seconds, print_json, scheduler_of_context, show_report
from .groups import SuggestingGroup


@click.group(cls=SuggestingGroup)
def lab() -> None:
    """Record the fleet, schedule the record again, and show the effect of more slots or other settings."""


TRACE = click.argument("trace", type=click.Path(dir_okay=False, path_type=Path))

ENGINE = click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="twin: the fast engine, for most rules; judge: the exact engine (the real library), for all; "
    "auto: the twin if possible.",
)

#: Seed of random numbers.
SEED = click.IntRange(0, MAX_COUNT)

#: Number of steps after which a progress bar is redrawn.
_REDRAW_STEPS = 1_000


def open_trace(path: Path) -> Trace:
    """Return the trace in a file. Raises AffinityError if the file has no trace, or the trace has no jobs."""
    if not path.exists():
        raise AffinityError(
            f"TRACE must be a file that `celery affinity lab record` wrote, but there is no {str(path)!r}"
        )
    trace = read_trace(path)
    if not trace.jobs:
        raise AffinityError(f"{path} has no jobs: a fleet without work was recorded")
    return trace


def show_progress(
    count: int, label: str, *, update_every: int = _REDRAW_STEPS
) -> AbstractContextManager[Iterable[object]]:
    """Return a progress bar of *count* steps on stderr, which only a terminal shows."""
    return click.progressbar(
        range(count), label=label, file=sys.stderr, hidden=not sys.stderr.isatty(), update_min_steps=update_every
    )


@contextmanager
def print_error_and_exit() -> Iterator[None]:
    """End the command with an error message."""
    try:
        yield
    except (AffinityError, OSError) as exc:
        raise click.ClickException(str(exc)) from exc


@command("advise", lab, json=True)
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
    default=advisor.MAX_SIMULATIONS,
    show_default=True,
    help="Maximum number of schedules; each takes as long as a replay.",
)
@click.option(
    "--seed", default=1, show_default=True, type=SEED, help="Seed of the random days that give the range of a wait."
)
@ENGINE
def advise(
    _: click.Context,
    trace: Path,
    targets: tuple[str, ...],
    simulations: int,
    seed: int,
    engine: Engine,
    as_json: bool,
) -> None:
    """Find the fewest slots, and the settings, that make the jobs of TRACE reach all targets.

    --target can be repeated. The advice was simulated, and reaches the targets. (3 s..6 s) is the range over ten days
    composed of parts of TRACE.
    """
    with print_error_and_exit():
        scenario = scenario_of(open_trace(trace))
        types = {arrival.type for arrival in scenario.arrivals}
        parsed = [parse_target(target, types) for target in targets]
        with show_progress(simulations, "simulating", update_every=1) as steps:
            advice = advisor.advise(
                scenario,
                parsed,
                lambda changed: run_engine(changed, engine).schedule,
                max_simulations=simulations,
                seed=seed,
                progress=steps,
            )
    show_report(advice, lab_text.advise_text, json=as_json)


@command("optimum", lab, json=True)
@TRACE
@click.option(
    "--weights",
    type=click.Choice([*list_schedules.WEIGHTS]),
    default="equal",
    show_default=True,
    help="Weight of a second of waiting: equal for all jobs, or priority + 1, plus 4 on demand.",
)
@click.option(
    "--bins",
    type=click.IntRange(16, 16_384),
    default=8_192,
    show_default=True,
    help="Maximum number of time steps of the lower bound: more are tighter and slower. A long trace gets fewer.",
)
@ENGINE
def optimum(_: click.Context, trace: Path, weights: str, bins: int, engine: Engine, as_json: bool) -> None:
    """Compare the waits in TRACE with the waits of a scheduler that knows all jobs and their durations in advance.

    The best schedule of many jobs cannot be computed. The upper bound is the wait of the best schedule found, and no
    schedule waits less than the lower bound.
    """
    with print_error_and_exit():
        recorded = open_trace(trace)
        try:
            # scipy and numpy are in the extra [lab]
            from ..lab.optimum import optimum as compared
            from ..lab.optimum import steps_in
        except ModuleNotFoundError as exc:
            raise AffinityError(f"{exc.name} is missing: {install_with('lab')}") from exc
        with show_progress(len(recorded.jobs), "replaying") as steps:
            replayed, _engine = run_engine(scenario_of(recorded), engine, steps)
        try:
            with show_progress(steps_in(len(recorded.jobs), bins), "bounding", update_every=1) as steps:
                report = compared(recorded, replayed, list_schedules.WEIGHTS[weights], bins=bins, progress=steps)
        except ValueError as exc:
            raise AffinityError(str(exc)) from exc
    show_report(report, lab_text.optimum_text, json=as_json)


@command("record", lab, json=True)
@click.option("--for", "for_s", callback=parse_seconds, help="Time to record, such as 90s, 10m or 1h.")
@click.option(
    "--output",
    default="trace.jsonl",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write: JSON Lines, or CSV if its name ends in .csv.",
)
def record(ctx: click.Context, for_s: float | None, output: Path, as_json: bool) -> None:
    """Record the fleet into a trace, from now on. Without --for, fetch the recording of affinity_record.

    A trace has times, types and workers, hashes instead of keys and tenants, and no arguments. Ctrl-C ends a recording
    early, and the trace so far is written.
    """
    if not output.absolute().parent.is_dir():
        raise click.BadParameter(f"a file in a folder that exists, got: {str(output)!r}", param_hint="--output")
    check_app_conf(ctx.obj.app)
    with suppress(SettingError):  # reported by the next reader of the settings
        if (others := settings_of(ctx.obj.app).cohorts) and ctx.meta.get(COHORT) is None:
            names = ", ".join([DEFAULT, *others])
            raise click.UsageError(f"a trace covers one cohort: name it before the command, --cohort, one of {names}")
    with scheduler_of_context(ctx) as scheduler:
        recorder = Recorder(scheduler, warn=lambda text: click.echo(f"warning: {text}", err=True))
        trace = recorder.fetch() if for_s is None else _record_with_progress(recorder, for_s)
        if not trace.jobs:
            raise click.ClickException("no job was recorded: no file is written")
        trace_file.write_trace(trace, output)
        recorder.forget()
    if as_json:
        print_json({"output": str(output), **trace_facts(trace)})
    else:
        click.echo(trace_text(trace, output))


def _record_with_progress(recorder: Recorder, for_s: float) -> Trace:
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    with click.progressbar(length=round(for_s), label="recording", file=sys.stderr) as bar:

        def progress(passed_s: float) -> None:
            bar.update(min(round(passed_s), round(for_s)) - bar.pos)

        return recorder.record(for_s, progress)


def trace_facts(trace: Trace) -> dict[str, Any]:
    """Return a trace's length in seconds and its numbers of jobs, workers, types and ends, for ``--json``."""
    outcomes = Counter(job.outcome for job in trace.jobs)
    return {
        "length_s": trace.length_us / SECOND_US,
        "jobs": len(trace.jobs),
        "workers": len({worker.name for worker in trace.workers}),
        "types": len({job.type for job in trace.jobs}),
        "outcomes": {outcome: outcomes[outcome] for outcome in OUTCOMES if outcomes[outcome]},
        "lost": trace.lost,
    }


def trace_text(trace: Trace, output: Path) -> str:
    """Return a summary of a written trace as text."""
    facts = trace_facts(trace)
    claims = len(trace.jobs) - sum(job.outcome == PENDING for job in trace.jobs)
    return wrap_paragraph(
        [
            ("trace", str(output)),
            ("length", duration_text(facts["length_s"])),
            ("jobs", f"{pluralize(claims, 'claim')}, {len(trace.jobs) - claims} that waited at the end"),
            ("fleet", f"{pluralize(facts['workers'], 'worker')}, {pluralize(facts['types'], 'type')} of jobs"),
        ]
    )


@command("replay", lab, json=True)
@TRACE
@ENGINE
def replay(_: click.Context, trace: Path, engine: Engine, as_json: bool) -> None:
    """Schedule the jobs of TRACE again, and compare the result with the record.

    Fidelity is the share of claims that the replay reproduces, on workers of the recorded types and in the recorded
    order. If it is high, `lab whatif` can be trusted for this fleet.
    """
    with print_error_and_exit():
        record = record_of(open_trace(trace))
        with show_progress(len(record.schedule.scenario.arrivals), "replaying") as steps:
            report = replay_module.replay(record, engine, steps)
    show_report(report, lab_text.replay_text, json=as_json)


@command("whatif", lab, json=True)
@TRACE
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="age_weight=32, or limits.type:pdf=5.")
@click.option("--add", multiple=True, metavar="[TYPES]:SLOTS", help="A further worker, such as '[pdf,xls]:2'.")
@click.option("--remove", multiple=True, metavar="WORKER", help="A worker of the trace that the changed fleet lacks.")
@click.option(
    "--rate",
    "rates",
    multiple=True,
    metavar="TYPE=FACTOR",
    help="Factor for the number of jobs of a type, such as pdf=1.5.",
)
@click.option("--priority", "priorities", multiple=True, metavar="TYPE=N", help="The priority of all jobs of a type.")
@click.option(
    "--seed",
    default=1,
    show_default=True,
    type=SEED,
    help="Seed of the choice of the jobs that --rate repeats or leaves out.",
)
@click.option("--plot", "plot_to", type=click.Path(dir_okay=False, path_type=Path), help="Write a plot of waits (SVG).")
@ENGINE
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
    """Schedule the jobs of TRACE without and with changes, and show which jobs would wait less or longer.

    Each option can be repeated. The engine makes both schedules; use `lab replay` for a comparison with the record.
    """
    if not any((settings, add, remove, rates, priorities)):
        raise click.UsageError("give at least one of --set, --add, --remove, --rate and --priority")
    with print_error_and_exit():
        scenario = scenario_of(open_trace(trace))
        changes = read_changes(
            scenario, settings=settings, add=add, remove=remove, rates=rates, priorities=priorities, seed=seed
        )
        with show_progress(2 * len(scenario.arrivals), "scheduling") as steps:
            before, after, chosen = schedule_both(scenario, changes, engine, steps)
        if plot_to is not None:
            change_text = " ".join((*settings, *add, *(f"without {name}" for name in remove), *rates, *priorities))
            curves = waits.waits_by_job(before).values(), waits.waits_by_job(after).values()
            plot_to.write_text(plot.waits_svg(*curves, f"waits with {change_text}"), encoding="utf-8")
    show_report(compare_waits(before, after, chosen), lab_text.whatif_text, json=as_json)
