"""Report the end of a merged run to its callers: each gets state, links, chain and chord under its own task id.

The process that ran the task reports the end; a dispatcher reports the rest. Each caller is notified once, unless the
reporting process dies midway: then a page of callers may be notified again. Repeated follow-up calls are recognized by
their ids (`follow_up_ids`), and a caller keeps its first end.
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
from .reporter import ResultReporter, describe_error, reason_text, stored_meta


class StoredSuccess(NamedTuple):
    """A successful end of a run. *result_of* returns the result for the caller with this job id."""

    result_of: Callable[[str], Any]


class StoredFailure(NamedTuple):
    """A failed end of a run. *traceback*: as text, or None."""

    error: BaseException
    traceback: str | None = None


def is_revoked(end: StoredSuccess | StoredFailure | None) -> bool:
    """Return True if the call was revoked, or has expired."""
    return isinstance(end, StoredFailure) and isinstance(end.error, TaskRevokedError)


def stored_end_of_call(app: Celery, task_name: str, task_id: str) -> StoredSuccess | StoredFailure | None:
    """Return the end of a call, or None if none is stored or the result backend does not answer."""
    try:
        return _stored_end(app.tasks[task_name], task_id)
    except Exception:  # the backend does not answer
        return None


def stored_end_of_run(app: Celery, task_name: str, task_id: str) -> StoredSuccess | StoredFailure | None:
    """Return the end of a run for its other callers, or None if none is stored. Raises the backend's errors."""
    task = app.tasks[task_name]
    end = _stored_end(task, task_id)
    if isinstance(end, StoredSuccess) and (merge := merge_of(task)) is not None and merge.split is not None:
        return StoredFailure(
            ResultLostError("the run of this call succeeded, but the call's part of the result is lost")
        )
    return end


def _stored_end(task: Task, task_id: str) -> StoredSuccess | StoredFailure | None:
    meta = stored_meta(task.backend, task_id)
    if meta is None:
        return None
    result = meta["result"]
    if meta["status"] == states.SUCCESS:
        return StoredSuccess(lambda _: result)
    return StoredFailure(result, meta.get("traceback"))


logger = limited_logger(__name__)
#: Seconds after the end of a run without a stored result until the result counts as lost. If the task replaced itself,
#: another run may still publish the result.
LOST_AFTER_S = 60.0
#: Errors of a broker or result backend that does not answer.
DOWN = (RedisError, OSError, OperationalError)
#: Outcome of a batch whose end is stored in the result backend, but not reported to all callers.
SHARED = "shared"


class BatchRun(NamedTuple):
    """A batch of task calls. *run_id*: the task id of the primary call, whose message is run.

    *fence*: the fencing token of its claim; "" if it is no longer claimed.
    """

    job_id: str
    task_name: str
    fence: str = ""
    run_id: str = ""


def pages_of(scheduler: Scheduler, batch: BatchRun) -> Iterator[list[BatchCall]]:
    """Yield the unreported calls of *batch*, except the primary, in order and in pages.

    Reports of a page's calls, before the next page is read, do not affect the next page.
    """
    after: int | None = 0
    while after is not None:
        page = scheduler.batch_calls(batch.job_id, fence=batch.fence, after=after)
        if page is None:  # already claimed by another worker, or reported
            return
        yield page.callers
        after = page.after


def deliver_merged_result(
    reporter: ResultReporter,
    batch: BatchRun,
    end: StoredSuccess | StoredFailure,
    *,
    scheduler: Scheduler,
    is_repeated: bool = True,
) -> bool:
    """Report the end of *batch*'s run to its other callers. Return True if it is reported to all of them.

    *is_repeated*: some callers may have a full or partial report. They keep their end, except that a success replaces a
    failure. The dispatcher reports to callers that cannot be notified now. Raises the broker's errors.
    """

    def report(caller: BatchCall) -> None:
        stored = stored_end_of_call(reporter.app, batch.task_name, caller.task_id) if is_repeated else None
        if not is_revoked(stored):
            if isinstance(stored, StoredFailure) and isinstance(end, StoredSuccess):
                stored = None  # the run failed, and was run again
            report_to_caller(reporter, batch, caller, stored or end, is_stored=stored is not None)

    outcome = f"failed {describe_error(end.error)}" if isinstance(end, StoredFailure) else "acked"
    return _report_all(scheduler, batch, report, outcome=outcome)


def deliver_retry(reporter: ResultReporter, batch: BatchRun, exc: Retry, run: Context, *, scheduler: Scheduler) -> None:
    """Retry the other calls of *batch*, whose *run* is retried: each separately, and they may merge again.

    A call that cannot be retried now gets the end of the next run. Raises the broker's errors.
    """
    timing = {name: exc.sig.options[name] for name in ("countdown", "eta") if exc.sig.options.get(name) is not None}

    def report(caller: BatchCall) -> None:
        request = _request_of(reporter, batch, caller)
        if request is None:
            raise _unreadable()
        task, context = request.task, request._context
        option_sources.copy_move_to_retry(run, context)
        with _current(task, context), follow_up_ids(caller.job_id):
            task.signature_from_request(context, retries=context.retries + 1, **timing).apply_async()
        send_retry(request, batch.run_id, exc)

    _report_all(scheduler, batch, report, outcome="acked")


def _report_all(scheduler: Scheduler, batch: BatchRun, report: Callable[[BatchCall], None], *, outcome: str) -> bool:
    """Call *report* for each caller of *batch*, and end its call with *outcome*. Return True if all succeeded."""
    all_reported = True
    for page in pages_of(scheduler, batch):
        reported: list[str] = []
        try:
            reported.extend(caller.job_id for caller in page if _is_reported(caller, report))
        finally:
            if reported:
                scheduler.ack_batch_reports(batch.job_id, reported, fence=batch.fence, outcome=outcome)
        all_reported = all_reported and len(reported) == len(page)
    return all_reported


def deliver_later(reporter: ResultReporter, scheduler: Scheduler, ending: UnreportedEnd) -> bool:
    """Report the end of a batch, as stored in the result backend or as a dead letter's reason, to its callers.

    Return True if it is reported to all of them. The end of a run that continues elsewhere (a retry, a replacing task)
    is not available yet. If that call was revoked or has expired, the other calls run again.
    """
    end_of = _end_in_backend if ending.how == SHARED else _end_of_dead_letter
    end = end_of(reporter, scheduler, ending)
    batch = BatchRun(ending.job_id, ending.task_name, run_id=ending.task_id)
    if end is None:
        return False
    if is_revoked(end):
        return _publish_again(reporter, batch, scheduler=scheduler)
    return deliver_merged_result(reporter, batch, end, scheduler=scheduler)


def _publish_again(reporter: ResultReporter, batch: BatchRun, *, scheduler: Scheduler) -> bool:
    """Publish *batch*'s calls without an end again; they may merge. Return True if all are. Raises broker errors."""

    def report(caller: BatchCall) -> None:
        stored = stored_end_of_call(reporter.app, batch.task_name, caller.task_id)
        request = None if stored else _request_of(reporter, batch, caller)
        if request is not None:
            with _current(request.task, request._context), follow_up_ids(f"{caller.job_id} again"):
                request.task.signature_from_request(request._context).apply_async()
        elif not is_revoked(stored):
            report_to_caller(
                reporter, batch, caller, stored or StoredFailure(_unreadable()), is_stored=stored is not None
            )

    return _report_all(scheduler, batch, report, outcome="acked")


def _request_of(reporter: ResultReporter, batch: BatchRun, caller: BatchCall) -> Any:
    """Return the request of a call, ready to be published again with its arguments, or None if it is unreadable."""
    request = reporter.request_of(batch.task_name, caller.task_id, caller.message)
    if request is not None:
        request._context.args, request._context.kwargs = request.args, request.kwargs
    return request


def _unreadable() -> Exception:
    return ValueError("the message of this call cannot be read")


def _end_of_dead_letter(
    reporter: ResultReporter, scheduler: Scheduler, ending: UnreportedEnd
) -> StoredSuccess | StoredFailure:
    """Return the end of a dead-lettered batch's run, from the backend or from the server.

    The process that ran the task may have stored the result, and died before it reported to all callers.
    """
    stored = stored_end_of_run(reporter.app, ending.task_name, ending.task_id)
    if ending.how in ("rejected", "failed"):
        is_valid = isinstance(stored, StoredFailure) and not is_revoked(stored)
    else:
        is_valid = not is_revoked(stored) or ending.how == "lost"
    return stored if stored is not None and is_valid else StoredFailure(_failure_of(scheduler, ending))


def _failure_of(scheduler: Scheduler, ending: UnreportedEnd) -> Exception:
    """Return the failure of a run that is not in the backend."""
    if ending.how != "failed":
        return reason_text(ending)
    text = scheduler.reader.ask_one("hget", scheduler.reader.key("job", ending.job_id), "why")
    return ResultLostError(
        f"the run of this call failed: {decode_text(text) if text else 'its worker did not say why'}"
    )


def _end_in_backend(
    reporter: ResultReporter, scheduler: Scheduler, ending: UnreportedEnd
) -> StoredSuccess | StoredFailure | None:
    stored = stored_end_of_run(reporter.app, ending.task_name, ending.task_id)
    if stored is not None:
        return stored
    has_backend = not isinstance(reporter.app.tasks[ending.task_name].backend, DisabledBackend)
    if scheduler.reader.has_unended_job(ending.task_id) or (has_backend and ending.since_s < LOST_AFTER_S):
        return None
    return StoredFailure(ResultLostError("the run of this call ended, but its result is lost"))


def _is_reported(caller: BatchCall, report: Callable[[BatchCall], None]) -> bool:
    try:
        report(caller)
    except DOWN:
        raise  # no other caller can be notified either
    except ChordIsClaimedError as exc:
        logger.info("The outcome of task %s is reported to its caller later: %s", caller.task_id, exc)
        return False
    except Exception:
        logger.exception(
            "The outcome of the merged run cannot be reported to the caller of task %s; retrying", caller.task_id
        )
        return False
    return True


def report_to_caller(
    reporter: ResultReporter,
    batch: BatchRun,
    caller: BatchCall,
    end: StoredSuccess | StoredFailure,
    *,
    is_stored: bool = False,
) -> None:
    """Report to a caller. *is_stored*: its result is stored, so its links are published; later steps may be missing."""
    request = reporter.request_of(batch.task_name, caller.task_id, caller.message)
    if request is None:  # the follow-up calls are unreadable
        error = end.error if isinstance(end, StoredFailure) else _unreadable()
        reporter.app.backend.mark_as_failure(caller.task_id, error, request=Context(id=caller.task_id))
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
            _publish_follow_ups(reporter.app, caller.job_id, result, context)
        task.backend.mark_as_done(caller.task_id, result, context, not (ignores or is_stored))  # counts the chord part
        send_success(request, batch.run_id, result)


@contextmanager
def _current(task: Any, context: Context) -> Iterator[None]:
    """Make *task*'s run with *context* the current one, so that the calls it publishes inherit from its caller."""
    _task_stack.push(task)
    task.request_stack.push(context)
    try:
        yield
    finally:
        task.request_stack.pop()
        _task_stack.pop()


def _publish_follow_ups(app: Celery, job_id: str, result: Any, context: Context) -> None:
    """Publish the links of the call *job_id*, and the next step of its chain, like Celery's tracer."""
    priority = context.delivery_info.get("priority") if app.conf.task_inherit_parent_priority else None
    lineage = {"parent_id": context.id, "root_id": context.root_id or context.id, "priority": priority}
    links = [maybe_signature(link, app=app) for link in context.callbacks or ()]
    single = [link for link in links if not isinstance(link, group)]
    for index, link in enumerate(links):
        if isinstance(link, group):
            with follow_up_ids(f"{job_id} link {index}", link):
                link.apply_async((result,), **lineage)
    with follow_up_ids(f"{job_id} links", *single):
        if len(single) > 1:
            group(single, app=app).apply_async((result,), **lineage)
        elif single:
            single[0].apply_async((result,), **lineage)
    if context.chain:
        step = maybe_signature(context.chain[-1], app=app)
        with follow_up_ids(f"{job_id} chain", step):
            step.apply_async((result,), chain=context.chain[:-1], **lineage)
