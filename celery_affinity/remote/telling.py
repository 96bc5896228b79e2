"""Callers are told by Celery's own code how a job of a worker over HTTP ended: result, links, chain, chord, errbacks.

All of this is foreign code, and may hang.
"""

from collections.abc import Callable

from celery import Celery, signals

from ..callers import chord_parts
from ..callers.known_ends import Failed, Succeeded, end_of_call, is_revoked
from ..callers.sharing import Batch, share, tell_caller
from ..callers.teller import Teller
from ..client.accepted_work import tells_an_end
from ..client.of_app import settings_of
from ..rules.marks import is_batch
from ..server.replies import Caller, Ending
from ..server.scheduler import Scheduler
from .claims import RemoteClaim
from .outcome import Outcome


@tells_an_end
def tell(
    scheduler: Scheduler, app: Celery, hostname: str, its: RemoteClaim, outcome: Outcome, *, is_repeated: bool
) -> None:
    """Tell the callers of a job how it ended. *is_repeated*: some may know it; who has an end keeps it.

    Raises what Celery's code, a backend or the broker raises; ChordIsClaimedError if this is to be repeated later.
    """
    chord_parts.install()
    if outcome.state == "revoked":
        tell_unrun(scheduler, app, hostname, its, "revoked")
        return
    row = its.row
    teller = Teller(app, hostname, lambda: None)
    batch = Batch(row.job_id, row.task, row.fence, row.task_id)
    has_run = row.deliveries > 0 or row.requeues > 0  # elsewhere: who ran it may have told some of this
    caller = Caller(its.primary or row.job_id, row.task_id, row.enqueued_us, its.message(scheduler.reader))
    end = _end_of(outcome)
    if has_run:
        _check_chord(teller, row.task, caller)
    known = end_of_call(app, row.task, row.task_id) if is_repeated else None
    if not is_revoked(known):
        tell_caller(teller, batch, caller, known or end, is_stored=known is not None)
    if is_batch(row.job_id) and not (isinstance(end, Failed) and settings_of(app).keep_failed):
        share(teller, batch, end, scheduler=scheduler, is_repeated=is_repeated or has_run)
    _send_signal(app, its, outcome, end)


def _check_chord(teller: Teller, task: str, caller: Caller) -> None:
    """Raise ChordIsClaimedError while Celery would ignore this part of a chord: a process died that had claimed it."""
    request = teller.request_of(task, caller.task_id, caller.message)
    if request is not None:
        chord_parts.check_claim(request.task.backend, request._context)


def tell_unrun(scheduler: Scheduler, app: Celery, hostname: str, its: RemoteClaim, how: str) -> None:
    """Tell the caller of a job that it is "revoked", or has "expired"."""
    row = its.row
    ending = Ending(row.job_id, how, row.type, row.task_id, row.task)
    said: Callable[[], None] = lambda: None  # noqa: E731  # the release follows
    Teller(app, hostname, lambda: None).tell(ending, its.message(scheduler.reader), said)


def _end_of(outcome: Outcome) -> Succeeded | Failed:
    if outcome.error is None:
        return Succeeded(lambda _: outcome.result)
    return Failed(outcome.error.exception, outcome.error.traceback)


def _send_signal(app: Celery, its: RemoteClaim, outcome: Outcome, end: Succeeded | Failed) -> None:
    task = app.tasks[its.row.task]
    if isinstance(end, Failed):
        said = {"exception": end.error, "args": None, "kwargs": None, "traceback": None, "einfo": None}
        signals.task_failure.send(sender=task, task_id=its.row.task_id, **said)
    else:
        signals.task_success.send(sender=task, result=outcome.result)
