"""The callers of a merged run get its end, each under the own task id: state, links, chain and chord, as after its own.

The process that ran the task shares what it knows; the dispatcher shares what no process could tell. Every caller is
told once, unless the process that tells dies midway: then a page of callers may be told again. What was published is
known by its id (`following_ids`), and a caller keeps the end that it has.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from celery import Celery, group, states
from celery._state import _task_stack
from celery.app.task import Context, Task
from celery.canvas import maybe_signature
from celery.exceptions import Retry, TaskRevokedError
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from ..client import first_try
from ..client.following_ids import following
from ..client.of_app import merge_of
from ..errors import ResultLostError
from ..rules.rows import text_of
from ..server.replies import Caller, Ending
from ..server.scheduler import Scheduler
from .caller_events import send_failure, send_retry, send_success
from .chord_parts import ChordIsClaimedError, count_again
from .failure import words
from .teller import Teller, why

logger = logging.getLogger(__name__)

#: Time, s, after the end of a run, after which its result counts as lost if nobody knows it: a task that replaced
#: itself may be published by another run.
LOST_AFTER_S = 60.0

#: Errors of a broker, or a result backend, that does not answer.
AWAY = (RedisError, OSError, OperationalError)

#: How the run of a batch ended whose other callers are to be told: the result backend knows.
SHARED = "shared"


class Succeeded(NamedTuple):
    """A good end of a run. *result_of* returns the result of the caller with this job id."""

    result_of: Callable[[str], Any]


class Failed(NamedTuple):
    """A bad end of a run. *traceback*: a text, or None."""

    error: BaseException
    traceback: str | None = None


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
        known = _end_of(teller, batch.task_name, caller) if is_repeated else None
        if not (isinstance(known, Failed) and isinstance(known.error, TaskRevokedError)):
            if isinstance(known, Failed) and isinstance(end, Succeeded):
                known = None  # the run failed, and was run again
            _tell(teller, batch, caller, known or end, is_stored=known is not None)

    return _tell_all(scheduler, batch, tell, outcome=_outcome_of(end))


def retry(teller: Teller, batch: Batch, exc: Retry, run: Context, *, scheduler: Scheduler) -> None:
    """Retry the other calls of *batch*, whose *run* is retried: each for itself, and they may merge again.

    A call that cannot be retried now has the end of the run that follows. Raises what the broker raises.
    """
    when = {name: exc.sig.options[name] for name in ("countdown", "eta") if exc.sig.options.get(name) is not None}

    def tell(caller: Caller) -> None:
        request = teller.request_of(batch.task_name, caller.task_id, caller.message)
        if request is None:
            raise ValueError("its message cannot be read")
        task, context = request.task, request._context
        context.args, context.kwargs = request.args, request.kwargs
        first_try.move_as(run, context)
        with _current(task, context), following(caller.job_id):
            task.signature_from_request(context, retries=context.retries + 1, **when).apply_async()
        send_retry(request, batch.run_id, exc)

    _tell_all(scheduler, batch, tell, outcome="acked")


def _outcome_of(end: Succeeded | Failed) -> str:
    return f"failed {words(end.error)}" if isinstance(end, Failed) else "acked"


def _tell_all(scheduler: Scheduler, batch: Batch, tell: Callable[[Caller], None], *, outcome: str) -> bool:
    """Tell all callers of *batch* with *tell*, and end the calls that know, with *outcome*. Return whether all do."""
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
    known yet.
    """
    end: Succeeded | Failed | None
    if ending.how == SHARED:
        end = _end_in_backend(teller, scheduler, ending)
    elif ending.how in ("rejected", "failed"):
        end = _failure(teller, ending) or Failed(_why(scheduler, ending))
    else:
        end = Failed(why(ending))
    batch = Batch(ending.job_id, ending.task_name, run_id=ending.task_id)
    return end is not None and share(teller, batch, end, scheduler=scheduler)


def _failure(teller: Teller, ending: Ending) -> Failed | None:
    """Return the failure of a run as its worker wrote it; None if the backend does not know it."""
    try:
        meta = teller.app.tasks[ending.task_name].backend.get_task_meta(ending.task_id)
    except NotImplementedError:  # no backend
        return None
    return Failed(meta["result"], meta.get("traceback")) if isinstance(meta["result"], Exception) else None


def _why(scheduler: Scheduler, ending: Ending) -> Exception:
    """Return the failure of a run that the backend does not know."""
    if ending.how == "rejected":
        return why(ending)
    words = scheduler.reader.ask_one("hget", scheduler.reader.key("job", ending.job_id), "why")
    return ResultLostError(f"the run of this call failed: {text_of(words) if words else 'its worker did not say why'}")


def _end_in_backend(teller: Teller, scheduler: Scheduler, ending: Ending) -> Succeeded | Failed | None:
    task = teller.app.tasks[ending.task_name]
    try:
        meta = task.backend.get_task_meta(ending.task_id)
        has_backend = True
    except NotImplementedError:
        meta, has_backend = {"status": states.PENDING}, False
    if meta["status"] == states.SUCCESS and _splits(task):
        return Failed(ResultLostError("the run of this call succeeded, but the call's part of the result is lost"))
    if meta["status"] == states.SUCCESS:
        return Succeeded(lambda _: meta["result"])
    if meta["status"] in states.EXCEPTION_STATES - {states.RETRY}:
        return Failed(meta["result"], meta.get("traceback"))
    if scheduler.reader.lives(ending.task_id) or (has_backend and ending.since_s < LOST_AFTER_S):
        return None
    return Failed(ResultLostError("the run of this call ended, but its result is lost"))


def _splits(task: Task) -> bool:
    merge = merge_of(task)
    return merge is not None and merge.split is not None


def _end_of(teller: Teller, task_name: str, caller: Caller) -> Succeeded | Failed | None:
    """Return the end of a call that the result backend knows; None if it knows none."""
    backend = teller.app.tasks[task_name].backend
    if str(backend.as_uri()).startswith("rpc"):
        return None  # the results are in the caller's queue
    try:
        meta = backend.get_task_meta(caller.task_id)
    except Exception:  # no backend, or it does not answer
        return None
    if meta["status"] == states.SUCCESS:
        return Succeeded(lambda _: meta["result"])
    return Failed(meta["result"], meta.get("traceback")) if meta["status"] in states.READY_STATES else None


def _told(caller: Caller, tell: Callable[[Caller], None]) -> bool:
    try:
        tell(caller)
    except AWAY:
        raise  # no other caller can be told either
    except ChordIsClaimedError as exc:
        logger.info("The caller of task %s is told later: %s", caller.task_id, exc)
        return False
    except Exception:
        logger.exception("The caller of task %s cannot be told the outcome of the merged run; retrying", caller.task_id)
        return False
    return True


def _tell(teller: Teller, batch: Batch, caller: Caller, end: Succeeded | Failed, *, is_stored: bool = False) -> None:
    """Tell a caller. *is_stored*: its result is, and so its links are published; what comes after that may not be."""
    request = teller.request_of(batch.task_name, caller.task_id, caller.message)
    if request is None:  # nobody can read what would follow
        error = end.error if isinstance(end, Failed) else ValueError("the message of this call cannot be read")
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
        counts_in = context.group if context.chord else caller.job_id  # each part of a chord may be the last one
        with following(f"{counts_in} chord", context.chord):
            task.backend.mark_as_done(caller.task_id, result, context, not (ignores or is_stored))
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
