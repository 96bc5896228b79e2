"""``celery -A proj affinity scale`` and ``scale-in``: how many slots there should be, and which worker can go."""

import time
from collections.abc import Sequence

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..policy.slot_math import MOST_TARGET_WAIT_S, TARGET_WAIT_S
from ..reports import cohorts
from ..reports.scale import Scale, scale_name
from ..reports.status import Report, WorkerStatus
from ..scheduler.cohorts import Cohorts
from .framework import AS_JSON, SecondsRange, cohorts_of_context, show_report, warn_cohorts_down
from .render import with_cohort_column

#: Exit codes of `scale-in`: the worker is drained (and, with --wait, holds nothing); it still works, or does not
#: answer; there is none.
DRAINED, BUSY, NONE = 0, 1, 2

#: Time, s, that a worker has for its answer, and the pause between two looks at it.
_ANSWER_S, _LOOK_EVERY_S = 5.0, 0.5

#: Longest wait, s, until the server knows that a worker drains: the worker says so with a heartbeat.
_KNOWN_WITHIN_S = 15.0


@click.command(cls=CeleryCommand)
@click.argument("types", metavar="[TYPE]...", nargs=-1)
@click.option(
    "--target-wait",
    default=TARGET_WAIT_S,
    show_default=True,
    type=SecondsRange(min=0, max=MOST_TARGET_WAIT_S, min_open=True),
    help="Seconds within which the jobs that wait now should start.",
)
@AS_JSON
@click.pass_context
@handle_preload_options
def scale(ctx: click.Context, types: tuple[str, ...], target_wait: float, as_json: bool) -> None:
    """Show how many slots there should be, for each group of workers or for the workers that serve exactly TYPEs."""
    with cohorts_of_context(ctx) as fleet:
        asked = fleet.each(lambda scheduler: Report(scheduler.reader).status())
        found = cohorts.scale_of_all(fleet, asked, types, target_wait)
    warn_cohorts_down(asked.down)
    show_report(found, _as_text, json=as_json)


def _as_text(found: list[Scale]) -> str:
    rows = [
        (each.profile, each.slots, each.running, f"{each.waiting:,.1f}", f"{each.work_s:,.1f} s", each.wanted_slots)
        for each in found
    ]
    head = ("types", "slots", "running", "waiting", "work", "wanted slots")
    return with_cohort_column(found, head, [tuple(map(str, row)) for row in rows])


@click.command("scale-in", cls=CeleryCommand)
@click.option("--drain", is_flag=True, help="Drain the worker. Without this option, only show its name.")
@click.option("--profile", metavar="TYPES", help="Choose among the workers that serve exactly these types: pdf,excel")
@click.option("--worker", metavar="NAME", help="Pick this worker, for example the one in a pod that will be deleted.")
@click.option(
    "--wait",
    metavar="SECONDS",
    type=SecondsRange(min=0),
    help="With --drain, wait up to this long for its jobs to end.",
)
@click.pass_context
@handle_preload_options
def scale_in(ctx: click.Context, drain: bool, profile: str | None, worker: str | None, wait: float | None) -> None:
    """Pick the worker with the fewest jobs; with --drain, it takes no new jobs, and with --wait, wait for its last one.

    A worker that alone serves a type is picked last, and the command says so.

    Exits with 0 on success; with 1 if the worker does not answer, or still has jobs after --wait; with 2 if no worker
    can be removed.
    """
    with cohorts_of_context(ctx) as fleet:
        workers = cohorts.whole_workers(cohorts.status_of_all(fleet).workers)
        chosen = _least_busy(workers, profile, worker)
        if chosen is None:
            click.echo("no live worker can be removed", err=True)
            ctx.exit(NONE)
        click.echo(chosen.name)
        if alone := _served_alone(chosen, workers):
            click.echo(f"no other worker serves {', '.join(alone)}", err=True)
        if drain:
            replies = ctx.obj.app.control.broadcast(
                "affinity_drain", destination=[chosen.name], reply=True, timeout=_ANSWER_S, limit=1
            )
            if not any("ok" in each.get(chosen.name, ()) for each in replies or ()):
                click.echo(f"no answer within {_ANSWER_S:g} s: the worker may not be draining", err=True)
                ctx.exit(BUSY)
            _wait_until_known(fleet, chosen)
        if drain and wait is not None:
            left = _wait_until_empty(fleet, chosen, wait)
            click.echo(f"{left} job(s) left" if left else "empty", err=True)
            ctx.exit(BUSY if left else DRAINED)


def _least_busy(workers: Sequence[WorkerStatus], profile: str | None, name: str | None) -> WorkerStatus | None:
    """Return the worker that holds the fewest jobs; of several the first by name. One that drains already is none.

    Without its jobs a worker ends; without the last worker of a type its jobs wait: so that one goes last.
    """
    wanted = None if profile is None else scale_name(profile.split(","))
    can_go = [
        each
        for each in workers
        if (each.name == name if name else each.takes_jobs) and (wanted is None or scale_name(each.types) == wanted)
    ]
    return min(can_go, key=lambda each: (bool(_served_alone(each, workers)), each.held, each.name), default=None)


def _served_alone(worker: WorkerStatus, workers: Sequence[WorkerStatus]) -> list[str]:
    """Return the types that *worker* serves and no other one that takes jobs."""
    others = {type_ for each in workers if each.id != worker.id and each.takes_jobs for type_ in each.types}
    return sorted(set(worker.types) - others)


def _wait_until_known(fleet: Cohorts, worker: WorkerStatus) -> None:
    """Wait until the server knows that *worker* drains, so that the next call picks another one."""
    until = time.monotonic() + _KNOWN_WITHIN_S
    while time.monotonic() < until:
        if not any(each.name == worker.name and each.takes_jobs for each in cohorts.status_of_all(fleet).workers):
            return
        time.sleep(_LOOK_EVERY_S)


def _wait_until_empty(fleet: Cohorts, worker: WorkerStatus, wait_s: float) -> int:
    """Return how many jobs *worker* holds after *wait_s* seconds at most."""
    until = time.monotonic() + wait_s
    while (left := _held(fleet, worker)) and time.monotonic() < until:
        time.sleep(_LOOK_EVERY_S)
    return left


def _held(fleet: Cohorts, worker: WorkerStatus) -> int:
    """Return how many jobs *worker* holds in all cohorts, by its ids there."""
    asked = fleet.each(lambda scheduler: sum(scheduler.reader.held(worker.id.split())))
    return sum(asked.answers.values())
