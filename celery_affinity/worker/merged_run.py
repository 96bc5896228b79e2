"""The run of merged calls, in the pool process: the task runs once for all calls, and all callers get the result.

`install_merged_run` wraps the function of each merging task before a pool forks. A run that cannot read its other calls
does not start. Custom functions (`fold`, `split`) run here, so an error in them is the task's failure, and
`results.merged` reports it to the other callers.
"""

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar

from celery import Celery
from celery.app.task import Context, Task
from celery.exceptions import Ignore, Retry
from celery.signals import task_failure, task_success

from ..errors import NotMerged
from ..leases.held_claim import claim_of_tag
from ..log_limit import limited_logger
from ..options.merge import Call, Merge
from ..publishing.app_config import import_merge_functions, merge_of, settings_of
from ..publishing.option_sources import mode_of
from ..results.events import collect_events, send_start
from ..results.merged import DOWN, BatchRun, StoredFailure, StoredSuccess, deliver_merged_result, deliver_retry
from ..results.reporter import ResultReporter
from ..scheduler.scheduler import Scheduler
from ..schema.constants import MAX_PRIORITY
from ..schema.job_record import is_batch
from ..schema.keys import COHORT
from ..schema.untrusted import clamp
from ..settings.cohorts import DEFAULT
from ..transport.channel import AffinityChannel
from .request import NotStartedError

logger = limited_logger(__name__)

_T = TypeVar("_T")
#: Options of a retry policy that apply to connecting. A custom policy can have others, for publishing.
_CONNECT_OPTIONS = ("max_retries", "interval_start", "interval_step", "interval_max")
#: Maximum seconds to wait for an unavailable broker: for a run that can be returned, and for an acked run, which would
#: fail for all callers. Seconds between two attempts.
_MAX_WAIT_S, _MAX_WAIT_AFTER_ACK_S, _PAUSE_S = 60.0, 600.0, 0.5


def retry_while_down(task: Task, query: Callable[[], _T], problem: str) -> _T:
    """Return the result of *query*. Retry while the broker is down: the batch stays claimed. *problem*: for the log."""
    deadline_s = time.monotonic() + (_MAX_WAIT_S if task.acks_late else _MAX_WAIT_AFTER_ACK_S)
    is_logged = False
    while True:
        try:
            return query()
        except DOWN as exc:
            if not is_logged:
                logger.warning("%s, because the broker does not answer; retrying: %s", problem % task.request.id, exc)
                is_logged = True
            if time.monotonic() >= deadline_s:
                if task.acks_late:
                    raise NotStartedError(f"{problem % task.request.id}: {exc}") from exc
                raise
        time.sleep(_PAUSE_S)


@contextmanager
def broker_of_run(task: Task) -> Iterator[tuple[Scheduler, ResultReporter]]:
    """Yield a scheduler on a connection of the app's publishing pool, and a result reporter.

    The connection is returned to the pool first. Follow-up calls are published on another connection of the pool, and a
    thread that holds one connection while it waits for another could wait forever.
    """
    app = task.app
    with app.producer_or_acquire() as producer:
        policy = app.conf.task_publish_retry_policy
        producer.connection.ensure_connection(**{name: policy[name] for name in _CONNECT_OPTIONS if name in policy})
        scheduler = _scheduler_of(task, producer.channel)
    with collect_events(app, task.request) as events:
        yield scheduler, ResultReporter(app, task.request.hostname or "", lambda: events)


def _scheduler_of(task: Task, channel: AffinityChannel) -> Scheduler:
    """Return the scheduler of the batch's cohort."""
    cohort = (task.request.properties or {}).get(COHORT, DEFAULT)
    routes = channel.routes
    return channel.scheduler if routes is None or cohort == DEFAULT else routes.channel_of(cohort).scheduler


#: Request attribute that holds its `_Run`.
_RUN = "affinity_run"
#: Attribute that marks a wrapped task function.
_WRAPPED = "_celery_affinity_runs_all_calls"


class _Run(NamedTuple):
    #: None for a single call.
    batch: BatchRun | None
    #: Calls by job id, in order of publishing. The primary call has the id "".
    calls: Mapping[str, Call]
    #: Results in the order of the calls. Empty if the run's result applies to all calls.
    results: list[Any]


def install_merged_run(app: Celery) -> None:
    """Make the merging tasks of *app* run once per batch. Raises OptionError if a function cannot be imported."""
    merging = [(task, import_merge_functions(merge)) for task in app.tasks.values() if (merge := merge_of(task))]
    for task, merge in merging:
        if not hasattr(task.run, _WRAPPED):  # wrapped by another worker in this process
            task.run = _wrap_run(task, merge, task.run)
            setattr(task.run, _WRAPPED, True)
    if merging:
        task_success.connect(_report_result, weak=False, dispatch_uid="celery_affinity: share a result")
        task_failure.connect(_report_failure, weak=False, dispatch_uid="celery_affinity: share a failure")


def calls_of_run(request: object) -> tuple[Call, ...]:
    """Return the calls of *request*'s run, or () for a run that is not merged."""
    run = vars(request).get(_RUN)
    return tuple(run.calls.values()) if isinstance(run, _Run) else ()


def _wrap_run(task: Task, merge: Merge, run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap *run*, the function of *task*, to run once for all calls of a batch."""

    @wraps(run)
    def run_merged(*args: Any, **kwargs: Any) -> Any:
        request = task.request
        claim = claim_of_tag((request.properties or {}).get("delivery_tag"))
        if request.called_directly or (merge.keep != "all" and (claim is None or not is_batch(claim[0]))):
            return run(*args, **kwargs)
        names = None if merge.keep == "all" else _signature(run)
        primary = _build_call(names, args, kwargs, request)
        calls = {"": primary}
        batch = None
        if claim is not None and is_batch(claim[0]):
            batch = BatchRun(claim[0], task.name, claim[1], request.id)
            read = partial(_read_calls, task, names, batch, primary)
            calls = retry_while_down(task, read, "The calls that are merged with task %s cannot be read")
        merged, folded = _Run(batch, calls, []), None
        setattr(request, _RUN, merged)
        if merge.fold is not None and batch is not None:
            folded, kept_ids = _fold_calls(merge, calls)
            if len(kept_ids) < len(calls):
                calls = _split_others(task, batch, calls, kept_ids)
                merged = _Run(batch, calls, [])
                setattr(request, _RUN, merged)
        try:
            result = _run(run, merge, list(calls.values()), folded, args, kwargs)
        except Retry as exc:
            if batch is not None and _is_for_primary_only(exc, request):
                _report_via_broker(task, partial(deliver_retry, batch=batch, exc=exc, run=request))
            raise
        if merge.split is None:
            return result
        assert not isinstance(merge.split, str), "it is imported"
        results = list(merge.split(result, list(calls.values())))
        if len(results) != len(calls):
            raise ValueError(f"split returned {len(results)} results for {len(calls)} calls")
        merged.results.extend(results)
        return results[[*calls].index("")]

    return run_merged


def _run(
    run: Callable[..., Any],
    merge: Merge,
    calls: Sequence[Call],
    folded: Call | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call *run* with the arguments that *merge* selects from *calls*. *folded*: the result of its `fold` function."""
    if merge.keep == "all":
        return run(list(calls))
    if len(calls) == 1:
        return run(*args, **kwargs)
    call = folded if merge.fold is not None else calls[0] if merge.keep == "first" else calls[-1]
    if not isinstance(call, Call):
        raise TypeError(f"fold must return a Call, got: {call!r:.200}")
    return run(*call.args, **call.kwargs)


def _fold_calls(merge: Merge, calls: Mapping[str, Call]) -> tuple[Call, list[str]]:
    """Fold consecutive calls, including the primary, with *merge*'s function. Return the result and the calls' ids."""
    assert not isinstance(merge.fold, str | None), "it is imported"
    (first, folded), *others = calls.items()
    kept_ids = [first]
    for job_id, call in others:
        try:
            folded = merge.fold(folded, call)
        except NotMerged:
            if "" in kept_ids:
                break
            folded, kept_ids = call, []
        kept_ids.append(job_id)
    return folded, kept_ids


def _split_others(task: Task, batch: BatchRun, calls: Mapping[str, Call], kept_ids: Sequence[str]) -> dict[str, Call]:
    """Keep the calls in *kept_ids* for this run, and return them. The server creates a new batch for the others."""
    kept = set(kept_ids)
    split_off = [job_id for job_id in calls if job_id not in kept]

    def split() -> None:
        with broker_of_run(task) as (scheduler, _):
            if scheduler.split_batch(batch.job_id, split_off, fence=batch.fence) < 0:
                raise Ignore(f"task {task.request.id} already runs with its calls on another worker")

    retry_while_down(task, split, "The calls that do not merge with task %s cannot be sent back")
    return {job_id: calls[job_id] for job_id in kept_ids}


def _is_for_primary_only(exc: Retry, request: Context) -> bool:
    """Return True if the retry has the primary call's arguments and does not apply to the other calls."""
    retried = exc.sig
    return retried is not None and (
        tuple(retried.args or ()) == tuple(request.args or ()) and dict(retried.kwargs or {}) == (request.kwargs or {})
    )


def _signature(run: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of *run*, or None if some arguments have no name."""
    try:
        signature = inspect.signature(run)
    except (TypeError, ValueError):  # implemented in C
        return None
    unnamed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return None if any(parameter.kind in unnamed for parameter in signature.parameters.values()) else signature


def _build_call(names: inspect.Signature | None, args: Sequence[Any], kwargs: Mapping[str, Any], request: Any) -> Call:
    """Return the call of *request*, with its arguments by name if *names* has them all."""
    if names is not None:
        with suppress(TypeError):  # invalid arguments: the task raises its own error
            bound = names.bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = (), bound.arguments
    return Call(
        tuple(args),
        dict(kwargs),
        task_id=request.id,
        on_demand=bool(mode_of(request.properties)),
        priority=clamp((request.delivery_info or {}).get("priority"), 0, MAX_PRIORITY, 0),
        headers=request.headers or {},
    )


def _read_calls(task: Task, names: inspect.Signature | None, batch: BatchRun, primary: Call) -> dict[str, Call]:
    """Return the calls of a batch, by job id, in the order of publishing. *primary*: the run's own, with id ""."""
    calls = {"": primary}
    published_us: dict[str, int] = {}
    requests = []
    with broker_of_run(task) as (scheduler, reporter):
        after: int | None = 0
        while after is not None:
            page = scheduler.batch_calls(batch.job_id, fence=batch.fence, after=after)
            if page is None:
                raise Ignore(f"task {task.request.id} already runs with its calls on another worker")
            published_us[""] = page.primary_us
            for caller in page.callers:
                published_us[caller.job_id] = caller.published_us
                request = reporter.request_of(task.name, caller.task_id, caller.message)
                if request is not None:  # otherwise its caller is notified that it is unreadable
                    calls[caller.job_id] = _build_call(names, request.args, request.kwargs, request._context)
                    requests.append(request)
            after = page.after
        for request in requests:
            send_start(request, batch.run_id)
    return {job_id: calls[job_id] for job_id in sorted(calls, key=published_us.__getitem__)}


def _report_result(sender: Any = None, result: Any = None, **_: Any) -> None:
    run = vars(sender.request_stack.top or object).get(_RUN)
    if run is not None:
        results = dict(zip(run.calls, run.results, strict=False))
        _report_to_others(sender, run.batch, StoredSuccess(lambda job_id: results.get(job_id, result)))


def _report_failure(sender: Any = None, exception: Any = None, einfo: Any = None, **_: Any) -> None:
    run = vars(sender.request_stack.top or object).get(_RUN)
    # If the run becomes a dead letter, the dispatcher reports to the callers, after the release has created the dead
    # letter. A call that was reported before that would end without its message, and no replay could run it.
    is_rejected = sender.acks_late and not sender.acks_on_failure_or_timeout
    if run is not None and not is_rejected and not settings_of(sender.app).keep_failed:
        _report_to_others(sender, run.batch, StoredFailure(exception, getattr(einfo, "traceback", None)))


def _report_to_others(task: Task, batch: BatchRun | None, end: StoredSuccess | StoredFailure) -> None:
    """Report the end of *batch*'s run to the other callers."""
    if batch is None:
        return
    is_repeated = bool((task.request.delivery_info or {}).get("redelivered"))
    _report_via_broker(task, partial(deliver_merged_result, batch=batch, end=end, is_repeated=is_repeated))


def _report_via_broker(task: Task, report: Callable[..., object]) -> None:
    """Report to the other callers with *report*. The dispatcher reports the remaining ones after the release."""
    try:
        with broker_of_run(task) as (scheduler, reporter):
            report(reporter, scheduler=scheduler)
    except DOWN as exc:
        logger.warning(
            "The broker does not answer: the dispatcher will report the outcome to the callers merged with task %s: %s",
            task.request.id,
            exc,
        )
