"""The callers of a merged run get its end, each under the own task id: state, links, chain and chord, as after its own.

The process that ran the task shares what it knows; the dispatcher shares what no process could tell. Every caller is
told once, unless the process that tells dies midway: then a page of callers may be told again. What was published is
known by its id (`following_ids`), and a caller keeps the end that it has.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from celery import Celery, group
from celery._state import _task_stack
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.canvas import maybe_signature
from celery.exceptions import Retry
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..client import first_try
from ..client.following_ids import following
from ..errors import ResultLostError
from ..log_limit import limited_logger
from ..rules.rows import text_of
from ..server.replies import Caller, Ending
from ..server.scheduler import Scheduler
from .caller_events import send_failure, send_retry, send_success
from .chord_parts import ChordIsClaimedError, count_again
from .failure import words
from .known_ends import Failed, Succeeded, end_of_call, end_of_run, is_revoked
from .teller import Teller, why

logger = limited_logger(__name__)

#: Time, s, after the end of a run, after which its result counts as lost if nobody knows it: a task that replaced
#: itself may be published by another run.
LOST_AFTER_S = 60.0

#: Errors of a broker, or a result backend, that does not answer.
DOWN = (RedisError, OSError, OperationalError)

#: How the run of a batch ended whose other callers are to be told: the result backend knows.
SHARED = "shared"


class Batch(NamedTuple):
    """A batch of calls of a task. *fence*: the number of its claim; "" if it is claimed no more.

    *run_id*: the task id of the call whose message is run.
    """

    job_id: str
    task_name: str
    fence: str = ""
    run_id: str = ""


def pages_of(scheduler: Scheduler, batch: Batch) -> Iterator[list[Caller]]:
    """Yield the calls of *batch* that do not know its end, in their order, but the one whose message was run.

    What is told of a page, before the next is asked for, changes nothing.
    """
    after: int | None = 0
    while after is not None:
        page = scheduler.callers(batch.job_id, fence=batch.fence, after=after)
        if page is None:  # claimed by another by now, or told
            return
        yield page.callers
        after = page.after


def share(
    teller: Teller, batch: Batch, end: Succeeded | Failed, *, scheduler: Scheduler, is_repeated: bool = True
) -> bool:
    """Tell the other callers of *batch* how its run ended. Return whether all of them know.

    *is_repeated*: some may have been told before, perhaps in part: these keep their end, except that a good end follows
    a bad one. A caller that cannot be told now is left to the dispatcher. Raises what the broker raises.
    """

    def tell(caller: Caller) -> None:
        known = end_of_call(teller.app, batch.task_name, caller.task_id) if is_repeated else None
        if not is_revoked(known):
            if isinstance(known, Failed) and isinstance(end, Succeeded):
                known = None  # the run failed, and was run again
            tell_caller(teller, batch, caller, known or end, is_stored=known is not None)

    return _tell_all(scheduler, batch, tell, outcome=_outcome_of(end))


def retry(teller: Teller, batch: Batch, exc: Retry, run: Context, *, scheduler: Scheduler) -> None:
    """Retry the other calls of *batch*, whose *run* is retried: each for itself, and they may merge again.

    A call that cannot be retried now has the end of the run that follows. Raises what the broker raises.
    """
    when = {name: exc.sig.options[name] for name in ("countdown", "eta") if exc.sig.options.get(name) is not None}

    def tell(caller: Caller) -> None:
        request = _request_of(teller, batch, caller)
        if request is None:
            raise _unreadable()
        task, context = request.task, request._context
        first_try.move_as(run, context)
        with _current(task, context), following(caller.job_id):
            task.signature_from_request(context, retries=context.retries + 1, **when).apply_async()
        send_retry(request, batch.run_id, exc)

    _tell_all(scheduler, batch, tell, outcome="acked")


def _outcome_of(end: Succeeded | Failed) -> str:
    return f"failed {words(end.error)}" if isinstance(end, Failed) else "acked"


def _tell_all(scheduler: Scheduler, batch: Batch, tell: Callable[[Caller], None], *, outcome: str) -> bool:
    """Call *tell* for each caller of *batch*. Where *tell* succeeds, end the call of that caller, with *outcome*.

    Return whether *tell* succeeded for all callers.
    """
    knows_all = True
    for page in pages_of(scheduler, batch):
        told: list[str] = []
        try:
            told.extend(caller.job_id for caller in page if _told(caller, tell))
        finally:
            if told:
                scheduler.shared(batch.job_id, told, fence=batch.fence, outcome=outcome)
        knows_all = knows_all and len(told) == len(page)
    return knows_all


def share_later(teller: Teller, scheduler: Scheduler, ending: Ending) -> bool:
    """Tell the callers of a batch whose run is over what the result backend knows of it, or why it is dead.

    Return whether all of them know. The end of a run that goes on elsewhere (a retry, a task that replaces it) is not
    known yet. If that was revoked, or has expired, so was one call: the others run again.
    """
    end_of = _end_in_backend if ending.how == SHARED else _end_of_dead
    end = end_of(teller, scheduler, ending)
    batch = Batch(ending.job_id, ending.task_name, run_id=ending.task_id)
    if end is None:
        return False
    if is_revoked(end):
        return _run_again(teller, batch, scheduler=scheduler)
    return share(teller, batch, end, scheduler=scheduler)


def _run_again(teller: Teller, batch: Batch, *, scheduler: Scheduler) -> bool:
    """Publish those calls of *batch* again that have no end. They may merge. Return whether all are.

    Raises what the broker raises.
    """

    def tell(caller: Caller) -> None:
        known = end_of_call(teller.app, batch.task_name, caller.task_id)
        request = None if known else _request_of(teller, batch, caller)
        if request is not None:
            with _current(request.task, request._context), following(f"{caller.job_id} again"):
                request.task.signature_from_request(request._context).apply_async()
        elif not is_revoked(known):
            tell_caller(teller, batch, caller, known or Failed(_unreadable()), is_stored=known is not None)

    return _tell_all(scheduler, batch, tell, outcome="acked")


def _request_of(teller: Teller, batch: Batch, caller: Caller) -> Any:
    """Return the request of a call, with its arguments, to be published again; None if the message cannot be read."""
    request = teller.request_of(batch.task_name, caller.task_id, caller.message)
    if request is not None:
        request._context.args, request._context.kwargs = request.args, request.kwargs
    return request


def _unreadable() -> Exception:
    return ValueError("the message of this call cannot be read")


def _end_of_dead(teller: Teller, scheduler: Scheduler, ending: Ending) -> Succeeded | Failed:
    """Return how the run of a dead batch ended: as the backend knows, or else as the server does.

    The process that ran the task may have stored its result, and died before all callers knew.
    """
    stored = end_of_run(teller.app, ending.task_name, ending.task_id)
    if ending.how in ("rejected", "failed"):
        is_known = isinstance(stored, Failed) and not is_revoked(stored)
    else:
        is_known = not is_revoked(stored) or ending.how == "lost"
    return stored if stored is not None and is_known else Failed(_why(scheduler, ending))


def _why(scheduler: Scheduler, ending: Ending) -> Exception:
    """Return the failure of a run that the backend does not know."""
    if ending.how != "failed":
        return why(ending)
    words = scheduler.reader.ask_one("hget", scheduler.reader.key("job", ending.job_id), "why")
    return ResultLostError(f"the run of this call failed: {text_of(words) if words else 'its worker did not say why'}")


def _end_in_backend(teller: Teller, scheduler: Scheduler, ending: Ending) -> Succeeded | Failed | None:
    stored = end_of_run(teller.app, ending.task_name, ending.task_id)
    if stored is not None:
        return stored
    has_backend = not isinstance(teller.app.tasks[ending.task_name].backend, DisabledBackend)
    if scheduler.reader.lives(ending.task_id) or (has_backend and ending.since_s < LOST_AFTER_S):
        return None
    return Failed(ResultLostError("the run of this call ended, but its result is lost"))


def _told(caller: Caller, tell: Callable[[Caller], None]) -> bool:
    try:
        tell(caller)
    except DOWN:
        raise  # no other caller can be told either
    except ChordIsClaimedError as exc:
        logger.info("The caller of task %s is told later: %s", caller.task_id, exc)
        return False
    except Exception:
        logger.exception("The caller of task %s cannot be told the outcome of the merged run; retrying", caller.task_id)
        return False
    return True


def tell_caller(
    teller: Teller, batch: Batch, caller: Caller, end: Succeeded | Failed, *, is_stored: bool = False
) -> None:
    """Tell a caller. *is_stored*: its result is, and so its links are published; what comes after that may not be."""
    request = teller.request_of(batch.task_name, caller.task_id, caller.message)
    if request is None:  # nobody can read what would follow
        error = end.error if isinstance(end, Failed) else _unreadable()
        teller.app.backend.mark_as_failure(caller.task_id, error, request=Context(id=caller.task_id))
        return
    task, context = request.task, request._context
    ignores = task.ignore_result if context.ignore_result is None else context.ignore_result
    if is_stored:
        count_again(task.backend, context)
    with _current(task, context):
        if isinstance(end, Failed):
            stores = task.store_errors_even_if_ignored or not ignores
            with following(f"{caller.job_id} failure", *(context.errbacks or ()), context.chord):
                task.backend.mark_as_failure(
                    caller.task_id, end.error, end.traceback, request=context, store_result=stores
                )
            send_failure(request, batch.run_id, end.error, end.traceback)
            return
        result = end.result_of(caller.job_id)
        if not is_stored:
            _publish_what_follows(teller.app, caller.job_id, result, context)
        task.backend.mark_as_done(caller.task_id, result, context, not (ignores or is_stored))  # `chord_parts` counts
        send_success(request, batch.run_id, result)


@contextmanager
def _current(task: Any, context: Context) -> Iterator[None]:
    """Make the run of *task* that *context* describes the current one: what it publishes inherits from its caller."""
    _task_stack.push(task)
    task.request_stack.push(context)
    try:
        yield
    finally:
        task.request_stack.pop()
        _task_stack.pop()


def _publish_what_follows(app: Celery, job_id: str, result: Any, context: Context) -> None:
    """Publish the links of the call *job_id*, and the next step of its chain, as Celery's tracer does."""
    priority = context.delivery_info.get("priority") if app.conf.task_inherit_parent_priority else None
    lineage = {"parent_id": context.id, "root_id": context.root_id or context.id, "priority": priority}
    links = [maybe_signature(each, app=app) for each in context.callbacks or ()]
    alone = [each for each in links if not isinstance(each, group)]
    for nth, each in enumerate(links):
        if isinstance(each, group):
            with following(f"{job_id} link {nth}", each):
                each.apply_async((result,), **lineage)
    with following(f"{job_id} links", *alone):
        if len(alone) > 1:
            group(alone, app=app).apply_async((result,), **lineage)
        elif alone:
            alone[0].apply_async((result,), **lineage)
    if context.chain:
        step = maybe_signature(context.chain[-1], app=app)
        with following(f"{job_id} chain", step):
            step.apply_async((result,), chain=context.chain[:-1], **lineage)
