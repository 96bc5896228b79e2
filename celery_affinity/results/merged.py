"""The end of a task that the result backend knows: of a call itself, or of a run, for the other callers of the run.

The callers of a merged run get its end, each under the own task id: state, links, chain and chord, as after its own.

The process that ran the task shares what it knows; the dispatcher shares what no process could tell. Every caller is
told once, unless the process that tells dies midway: then a page of callers may be told again. What was published is
known by its id (`following_ids`), and a caller keeps the end that it has.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from celery import Celery, group, states
from celery._state import _task_stack
from celery.app.task import Context, Task
from celery.backends.base import DisabledBackend
from celery.canvas import maybe_signature
from celery.exceptions import Retry, TaskRevokedError
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..errors import ResultLostError
from ..log_limit import limited_logger
from ..publishing import option_sources
from ..publishing.app_config import merge_of
from ..publishing.canvas import follow_up_ids
from ..scheduler.messages import BatchCall, UnreportedEnd
from ..scheduler.scheduler import Scheduler
from ..schema.values import decode_text
from .chords import ChordIsClaimedError, count_again
from .events import send_failure, send_retry, send_success
from .reporter import ResultReporter, describe_error, reason_text


class StoredSuccess(NamedTuple):
    """A good end of a run. *result_of* returns the result of the caller with this job id."""

    result_of: Callable[[str], Any]


class StoredFailure(NamedTuple):
    """A bad end of a run. *traceback*: a text, or None."""

    error: BaseException
    traceback: str | None = None


def is_revoked(end: StoredSuccess | StoredFailure | None) -> bool:
    """Return whether the call was revoked, or has expired."""
    return isinstance(end, StoredFailure) and isinstance(end.error, TaskRevokedError)


def stored_end_of_call(app: Celery, task_name: str, task_id: str) -> StoredSuccess | StoredFailure | None:
    """Return the end of a call; None if nobody knows one, or the result backend does not answer."""
    backend = app.tasks[task_name].backend
    if str(backend.as_uri()).startswith("rpc"):
        return None  # the results are in the caller's queue
    try:
        return _end(backend.get_task_meta(task_id))
    except Exception:  # no backend, or it does not answer
        return None


def stored_end_of_run(app: Celery, task_name: str, task_id: str) -> StoredSuccess | StoredFailure | None:
    """Return the end of a run for its other callers; None if nobody knows one. Raises what the backend raises."""
    task = app.tasks[task_name]
    try:
        end = _end(task.backend.get_task_meta(task_id))
    except NotImplementedError:  # no backend
        return None
    if isinstance(end, StoredSuccess) and _splits(task):
        return StoredFailure(
            ResultLostError("the run of this call succeeded, but the call's part of the result is lost")
        )
    return end


def _end(meta: dict[str, Any]) -> StoredSuccess | StoredFailure | None:
    if meta["status"] == states.SUCCESS:
        return StoredSuccess(lambda _: meta["result"])
    return StoredFailure(meta["result"], meta.get("traceback")) if meta["status"] in states.READY_STATES else None


def _splits(task: Task) -> bool:
    merge = merge_of(task)
    return merge is not None and merge.split is not None


logger = limited_logger(__name__)

#: Time, s, after the end of a run, after which its result counts as lost if nobody knows it: a task that replaced
#: itself may be published by another run.
LOST_AFTER_S = 60.0

#: Errors of a broker, or a result backend, that does not answer.
DOWN = (RedisError, OSError, OperationalError)

#: How the run of a batch ended whose other callers are to be told: the result backend knows.
SHARED = "shared"


class BatchRun(NamedTuple):
    """A batch of calls of a task. *fence*: the number of its claim; "" if it is claimed no more.

    *run_id*: the task id of the call whose message is run.
    """

    job_id: str
    task_name: str
    fence: str = ""
    run_id: str = ""


def pages_of(scheduler: Scheduler, batch: BatchRun) -> Iterator[list[BatchCall]]:
    """Yield the calls of *batch* that do not know its end, in their order, but the one whose message was run.

    What is told of a page, before the next is asked for, changes nothing.
    """
    after: int | None = 0
    while after is not None:
        page = scheduler.batch_calls(batch.job_id, fence=batch.fence, after=after)
        if page is None:  # claimed by another by now, or told
            return
        yield page.callers
        after = page.after


def deliver_merged_result(
    teller: ResultReporter,
    batch: BatchRun,
    end: StoredSuccess | StoredFailure,
    *,
    scheduler: Scheduler,
    is_repeated: bool = True,
) -> bool:
    """Tell the other callers of *batch* how its run ended. Return whether all of them know.

    *is_repeated*: some may have been told before, perhaps in part: these keep their end, except that a good end follows
    a bad one. A caller that cannot be told now is left to the dispatcher. Raises what the broker raises.
    """

    def tell(caller: BatchCall) -> None:
        known = stored_end_of_call(teller.app, batch.task_name, caller.task_id) if is_repeated else None
        if not is_revoked(known):
            if isinstance(known, StoredFailure) and isinstance(end, StoredSuccess):
                known = None  # the run failed, and was run again
            report_to_caller(teller, batch, caller, known or end, is_stored=known is not None)

    return _tell_all(scheduler, batch, tell, outcome=_outcome_of(end))


def deliver_retry(teller: ResultReporter, batch: BatchRun, exc: Retry, run: Context, *, scheduler: Scheduler) -> None:
    """Retry the other calls of *batch*, whose *run* is retried: each for itself, and they may merge again.

    A call that cannot be retried now has the end of the run that follows. Raises what the broker raises.
    """
    when = {name: exc.sig.options[name] for name in ("countdown", "eta") if exc.sig.options.get(name) is not None}

    def tell(caller: BatchCall) -> None:
        request = _request_of(teller, batch, caller)
        if request is None:
            raise _unreadable()
        task, context = request.task, request._context
        option_sources.copy_move_to_retry(run, context)
        with _current(task, context), follow_up_ids(caller.job_id):
            task.signature_from_request(context, retries=context.retries + 1, **when).apply_async()
        send_retry(request, batch.run_id, exc)

    _tell_all(scheduler, batch, tell, outcome="acked")


def _outcome_of(end: StoredSuccess | StoredFailure) -> str:
    return f"failed {describe_error(end.error)}" if isinstance(end, StoredFailure) else "acked"


def _tell_all(scheduler: Scheduler, batch: BatchRun, tell: Callable[[BatchCall], None], *, outcome: str) -> bool:
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
                scheduler.ack_batch_reports(batch.job_id, told, fence=batch.fence, outcome=outcome)
        knows_all = knows_all and len(told) == len(page)
    return knows_all


def deliver_later(teller: ResultReporter, scheduler: Scheduler, ending: UnreportedEnd) -> bool:
    """Tell the callers of a batch whose run is over what the result backend knows of it, or why it is dead.

    Return whether all of them know. The end of a run that goes on elsewhere (a retry, a task that replaces it) is not
    known yet. If that was revoked, or has expired, so was one call: the others run again.
    """
    end_of = _end_in_backend if ending.how == SHARED else _end_of_dead
    end = end_of(teller, scheduler, ending)
    batch = BatchRun(ending.job_id, ending.task_name, run_id=ending.task_id)
    if end is None:
        return False
    if is_revoked(end):
        return _run_again(teller, batch, scheduler=scheduler)
    return deliver_merged_result(teller, batch, end, scheduler=scheduler)


def _run_again(teller: ResultReporter, batch: BatchRun, *, scheduler: Scheduler) -> bool:
    """Publish those calls of *batch* again that have no end. They may merge. Return whether all are.

    Raises what the broker raises.
    """

    def tell(caller: BatchCall) -> None:
        known = stored_end_of_call(teller.app, batch.task_name, caller.task_id)
        request = None if known else _request_of(teller, batch, caller)
        if request is not None:
            with _current(request.task, request._context), follow_up_ids(f"{caller.job_id} again"):
                request.task.signature_from_request(request._context).apply_async()
        elif not is_revoked(known):
            report_to_caller(teller, batch, caller, known or StoredFailure(_unreadable()), is_stored=known is not None)

    return _tell_all(scheduler, batch, tell, outcome="acked")


def _request_of(teller: ResultReporter, batch: BatchRun, caller: BatchCall) -> Any:
    """Return the request of a call, with its arguments, to be published again; None if the message cannot be read."""
    request = teller.request_of(batch.task_name, caller.task_id, caller.message)
    if request is not None:
        request._context.args, request._context.kwargs = request.args, request.kwargs
    return request


def _unreadable() -> Exception:
    return ValueError("the message of this call cannot be read")


def _end_of_dead(teller: ResultReporter, scheduler: Scheduler, ending: UnreportedEnd) -> StoredSuccess | StoredFailure:
    """Return how the run of a dead batch ended: as the backend knows, or else as the server does.

    The process that ran the task may have stored its result, and died before all callers knew.
    """
    stored = stored_end_of_run(teller.app, ending.task_name, ending.task_id)
    if ending.how in ("rejected", "failed"):
        is_known = isinstance(stored, StoredFailure) and not is_revoked(stored)
    else:
        is_known = not is_revoked(stored) or ending.how == "lost"
    return stored if stored is not None and is_known else StoredFailure(_why(scheduler, ending))


def _why(scheduler: Scheduler, ending: UnreportedEnd) -> Exception:
    """Return the failure of a run that the backend does not know."""
    if ending.how != "failed":
        return reason_text(ending)
    words = scheduler.reader.ask_one("hget", scheduler.reader.key("job", ending.job_id), "why")
    return ResultLostError(
        f"the run of this call failed: {decode_text(words) if words else 'its worker did not say why'}"
    )


def _end_in_backend(
    teller: ResultReporter, scheduler: Scheduler, ending: UnreportedEnd
) -> StoredSuccess | StoredFailure | None:
    stored = stored_end_of_run(teller.app, ending.task_name, ending.task_id)
    if stored is not None:
        return stored
    has_backend = not isinstance(teller.app.tasks[ending.task_name].backend, DisabledBackend)
    if scheduler.reader.lives(ending.task_id) or (has_backend and ending.since_s < LOST_AFTER_S):
        return None
    return StoredFailure(ResultLostError("the run of this call ended, but its result is lost"))


def _told(caller: BatchCall, tell: Callable[[BatchCall], None]) -> bool:
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


def report_to_caller(
    teller: ResultReporter,
    batch: BatchRun,
    caller: BatchCall,
    end: StoredSuccess | StoredFailure,
    *,
    is_stored: bool = False,
) -> None:
    """Tell a caller. *is_stored*: its result is, and so its links are published; what comes after that may not be."""
    request = teller.request_of(batch.task_name, caller.task_id, caller.message)
    if request is None:  # nobody can read what would follow
        error = end.error if isinstance(end, StoredFailure) else _unreadable()
        teller.app.backend.mark_as_failure(caller.task_id, error, request=Context(id=caller.task_id))
        return
    task, context = request.task, request._context
    ignores = task.ignore_result if context.ignore_result is None else context.ignore_result
    if is_stored:
        count_again(task.backend, context)
    with _current(task, context):
        if isinstance(end, StoredFailure):
            stores = task.store_errors_even_if_ignored or not ignores
            with follow_up_ids(f"{caller.job_id} failure", *(context.errbacks or ()), context.chord):
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
            with follow_up_ids(f"{job_id} link {nth}", each):
                each.apply_async((result,), **lineage)
    with follow_up_ids(f"{job_id} links", *alone):
        if len(alone) > 1:
            group(alone, app=app).apply_async((result,), **lineage)
        elif alone:
            alone[0].apply_async((result,), **lineage)
    if context.chain:
        step = maybe_signature(context.chain[-1], app=app)
        with follow_up_ids(f"{job_id} chain", step):
            step.apply_async((result,), chain=context.chain[:-1], **lineage)
