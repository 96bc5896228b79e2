"""``celery -A proj affinity scale-in``: the worker to remove first."""

import time
from collections.abc import Sequence

import click

from ..reports.fleet_status import status_of_all, whole_workers
from ..reports.scale import scale_name
from ..reports.status import WorkerStatus
from ..scheduler.cohorts import Cohorts
from .framework import SecondsRange, cohorts_of_context, command

#: Exit codes of `scale-in`: the worker is drained (and, with --wait, holds no jobs); it still has jobs, or does not
#: answer; no worker can be removed.
DRAINED, BUSY, NONE = 0, 1, 2

#: Seconds that a worker has for its answer, and seconds between two checks.
_ANSWER_S, _CHECK_EVERY_S = 5.0, 0.5

#: Maximum time until the server knows from a heartbeat that a worker is draining, in seconds.
_DRAINING_WITHIN_S = 15.0


@command("scale-in")
@click.option("--drain", is_flag=True, help="Drain the worker. Without this option, only show its name.")
@click.option("--profile", metavar="TYPES", help="Choose among the workers that serve exactly these types: pdf,excel")
@click.option("--worker", metavar="NAME", help="Pick this worker, for example the one in a pod that will be deleted.")
@click.option(
    "--wait",
    metavar="SECONDS",
    type=SecondsRange(min=0),
    help="With --drain, wait up to this long for its jobs to end.",
)
def scale_in(ctx: click.Context, drain: bool, profile: str | None, worker: str | None, wait: float | None) -> None:
    """Pick the worker with the fewest jobs; with --drain, it takes no new jobs, and with --wait, wait for its last one.

    A worker that is the only one to serve a type is picked last, with a warning.

    Exits with 0 on success; with 1 if the worker does not answer, or still has jobs after --wait; with 2 if no worker
    can be removed.
    """
    with cohorts_of_context(ctx) as fleet:
        workers = whole_workers(status_of_all(fleet).workers)
        chosen = _least_busy(workers, profile, worker)
        if chosen is None:
            click.echo("no live worker can be removed", err=True)
            ctx.exit(NONE)
        click.echo(chosen.name)
        if types := _types_served_only_by(chosen, workers):
            click.echo(f"no other worker serves {', '.join(types)}", err=True)
        if drain:
            replies = ctx.obj.app.control.broadcast(
                "affinity_drain", destination=[chosen.name], reply=True, timeout=_ANSWER_S, limit=1
            )
            if not any("ok" in reply.get(chosen.name, ()) for reply in replies or ()):
                click.echo(f"no answer within {_ANSWER_S:g} s: the worker may not be draining", err=True)
                ctx.exit(BUSY)
            _wait_until_draining(fleet, chosen)
        if drain and wait is not None:
            remaining = _wait_until_empty(fleet, chosen, wait)
            click.echo(f"{remaining} job(s) left" if remaining else "empty", err=True)
            ctx.exit(BUSY if remaining else DRAINED)


def _least_busy(workers: Sequence[WorkerStatus], profile: str | None, name: str | None) -> WorkerStatus | None:
    """Return the worker that holds the fewest jobs, the first by name in a tie, or None. Draining workers are excluded.

    The last worker of a type is chosen last, because the type's jobs would wait without it.
    """
    wanted = None if profile is None else scale_name(profile.split(","))
    candidates = [
        worker
        for worker in workers
        if (worker.name == name if name else worker.takes_jobs)
        and (wanted is None or scale_name(worker.types) == wanted)
    ]
    return min(
        candidates,
        key=lambda worker: (bool(_types_served_only_by(worker, workers)), worker.held, worker.name),
        default=None,
    )


def _types_served_only_by(worker: WorkerStatus, workers: Sequence[WorkerStatus]) -> list[str]:
    """Return the types that *worker* serves, and no other worker that takes jobs."""
    others = {type_ for other in workers if other.id != worker.id and other.takes_jobs for type_ in other.types}
    return sorted(set(worker.types) - others)


def _wait_until_draining(fleet: Cohorts, worker: WorkerStatus) -> None:
    """Wait until the server knows that *worker* is draining, so that the next call picks another worker."""
    until = time.monotonic() + _DRAINING_WITHIN_S
    while time.monotonic() < until:
        if not any(one.name == worker.name and one.takes_jobs for one in status_of_all(fleet).workers):
            return
        time.sleep(_CHECK_EVERY_S)


def _wait_until_empty(fleet: Cohorts, worker: WorkerStatus, wait_s: float) -> int:
    """Wait at most *wait_s* seconds until *worker* is empty, and return the number of jobs that it holds."""
    until = time.monotonic() + wait_s
    while (remaining := _held_jobs(fleet, worker)) and time.monotonic() < until:
        time.sleep(_CHECK_EVERY_S)
    return remaining


def _held_jobs(fleet: Cohorts, worker: WorkerStatus) -> int:
    """Return the number of jobs that *worker* holds in all cohorts, by its ids there."""
    return sum(fleet.each(lambda scheduler: sum(scheduler.reader.claim_counts(worker.id.split()))).answers.values())
