"""``celery -A proj affinity lab record``: write a trace of what the fleet does."""

import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ...client.of_app import settings_of
from ...clock import SECOND_US
from ...errors import SettingError
from ...lab import trace_file
from ...lab.recorder import Recorder
from ...lab.trace import OUTCOMES, PENDING, Trace
from ...rules.cohorts import DEFAULT
from ...rules.redis_keys import COHORT
from ..broker import AS_JSON, check_conf, print_json, scheduler_of
from ..times import seconds
from ..words import duration, many, paragraph


@click.command(cls=CeleryCommand)
@click.option("--for", "for_s", callback=seconds, help="Time to record, such as 90s, 10m or 1h.")
@click.option(
    "--output",
    default="trace.jsonl",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write: JSON Lines, or CSV if its name ends in .csv.",
)
@AS_JSON
@click.pass_context
@handle_preload_options
def record(ctx: click.Context, for_s: float | None, output: Path, as_json: bool) -> None:
    """Record what the fleet does into a trace, from now on; without --for, fetch what affinity_record has recorded.

    A trace has times, types and workers, hashes instead of keys and tenants, and no arguments. Ctrl-C ends a recording
    early, and the trace so far is written.
    """
    if not output.absolute().parent.is_dir():
        raise click.BadParameter(f"a file in a folder that exists, got: {str(output)!r}", param_hint="--output")
    check_conf(ctx.obj.app)
    with suppress(SettingError):  # said by whoever reads the settings next
        if (others := settings_of(ctx.obj.app).cohorts) and ctx.meta.get(COHORT) is None:
            names = ", ".join([DEFAULT, *others])
            raise click.UsageError(f"a trace is of one cohort: name it before the command, --cohort, one of {names}")
    with scheduler_of(ctx) as scheduler:
        recorder = Recorder(scheduler, warn=_warn)
        trace = recorder.fetch() if for_s is None else _recorded(recorder, for_s)
        if not trace.jobs:
            raise click.ClickException("no job was there meanwhile: nothing is written")
        trace_file.write(trace, output)
        recorder.forget()
    if as_json:
        print_json({"output": str(output), **facts(trace)})
    else:
        click.echo(text_of_trace(trace, output))


def _recorded(recorder: Recorder, for_s: float) -> Trace:
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    with click.progressbar(length=round(for_s), label="recording", file=sys.stderr) as bar:

        def progress(passed_s: float) -> None:
            bar.update(min(round(passed_s), round(for_s)) - bar.pos)

        return recorder.record(for_s, progress)


def _warn(text: str) -> None:
    click.echo(f"warning: {text}", err=True)


def facts(trace: Trace) -> dict[str, object]:
    """Return the length of a trace, s, and how many jobs, workers, types and ends it has, for ``--json``."""
    outcomes = Counter(job.outcome for job in trace.jobs)
    return {
        "length_s": trace.length_us / SECOND_US,
        "jobs": len(trace.jobs),
        "workers": len({worker.name for worker in trace.workers}),
        "types": len({job.type for job in trace.jobs}),
        "outcomes": {outcome: outcomes[outcome] for outcome in OUTCOMES if outcomes[outcome]},
        "lost": trace.lost,
    }


def text_of_trace(trace: Trace, output: Path) -> str:
    """Return what was written, in words."""
    said = facts(trace)
    claims = len(trace.jobs) - sum(job.outcome == PENDING for job in trace.jobs)
    workers = many(len({worker.name for worker in trace.workers}), "worker")
    return paragraph(
        [
            ("trace", str(output)),
            ("length", duration(trace.length_us / SECOND_US)),
            ("jobs", f"{many(claims, 'claim')}, {len(trace.jobs) - claims} that waited at the end"),
            ("fleet", f"{workers}, {many(int(str(said['types'])), 'type')} of jobs"),
        ]
    )
