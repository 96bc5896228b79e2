"""The broker, as the pool's process asks it in the middle of a run of merged calls: which connection, how patiently.

The run of merged calls, in the process of the pool: one call is made of all, the task runs once, all callers know.

`install` wraps the function of each task that merges, before a pool forks. A run that cannot read its other callers
does not begin. The functions that a user gives (`fold`, `split`) run here, so that an error in one is the task's
failure; `callers.sharing` tells the others.
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

#: What a policy of retries says of connecting; a user's may say more, of publishing.
_PAUSES = ("max_retries", "interval_start", "interval_step", "interval_max")

#: Longest waits, s, for a broker that is down: of a run that can be given back, and of one that was acked, which would
#: fail for all callers. The pause between two tries.
_PATIENCE_S, _PATIENCE_AFTER_ACK_S, _PAUSE_S = 60.0, 600.0, 0.5


def retry_while_down(task: Task, ask: Callable[[], _T], what: str) -> _T:
    """Return what *ask* returns. Waits while the broker is down: the batch stays claimed. *what*: what fails then."""
    deadline_s = time.monotonic() + (_PATIENCE_S if task.acks_late else _PATIENCE_AFTER_ACK_S)
    is_said = False
    while True:
        try:
            return ask()
        except DOWN as exc:
            if not is_said:
                logger.warning("%s, because the broker does not answer; retrying: %s", what % task.request.id, exc)
                is_said = True
            if time.monotonic() >= deadline_s:
                if task.acks_late:
                    raise NotStartedError(f"{what % task.request.id}: {exc}") from exc
                raise
        time.sleep(_PAUSE_S)


@contextmanager
def broker_of_run(task: Task) -> Iterator[tuple[Scheduler, ResultReporter]]:
    """Yield a scheduler on a connection of the app's pool, by which its tasks publish, and a teller.

    The connection goes back to the pool first. What follows from a call is published on another connection of the
    pool, and a thread that held one connection while it waited for another could wait for ever.
    """
    app = task.app
    with app.producer_or_acquire() as producer:
        policy = app.conf.task_publish_retry_policy
        producer.connection.ensure_connection(**{name: policy[name] for name in _PAUSES if name in policy})
        scheduler = _scheduler_of(task, producer.channel)
    with collect_events(app, task.request) as events:
        yield scheduler, ResultReporter(app, task.request.hostname or "", lambda: events)


def _scheduler_of(task: Task, channel: AffinityChannel) -> Scheduler:
    """Return the scheduler of the cohort that has the batch."""
    cohort = (task.request.properties or {}).get(COHORT, DEFAULT)
    routes = channel.routes
    return channel.scheduler if routes is None or cohort == DEFAULT else routes.channel_of(cohort).scheduler


#: Name of the attribute of a request that has its `_Run`.
_RUN = "affinity_run"

#: Name of the attribute of a task's function that is wrapped.
_WRAPPED = "_celery_affinity_runs_all_calls"


class _Run(NamedTuple):
    """A run of calls. *batch*: None for one call alone. *calls*: by job id, in order of publishing; "": its own.

    *results*: of the calls, in that order; empty if all have the run's result.
    """

    batch: BatchRun | None
    calls: Mapping[str, Call]
    results: list[Any]


def install_merged_run(app: Celery) -> None:
    """Have the tasks of *app* that merge run once for all calls of a batch.

    Raises OptionError for a function that cannot be imported.
    """
    merging = [(task, import_merge_functions(merge)) for task in app.tasks.values() if (merge := merge_of(task))]
    for task, merge in merging:
        if not hasattr(task.run, _WRAPPED):  # by another worker in this process
            task.run = _for_all_calls(task, merge, task.run)
            setattr(task.run, _WRAPPED, True)
    if merging:
        task_success.connect(_share_result, weak=False, dispatch_uid="celery_affinity: share a result")
        task_failure.connect(_share_failure, weak=False, dispatch_uid="celery_affinity: share a failure")


def calls_of_run(request: object) -> tuple[Call, ...]:
    """Return the calls of the run that *request* stands for; none for a run that is not merged."""
    run = vars(request).get(_RUN)
    return tuple(run.calls.values()) if isinstance(run, _Run) else ()


def _for_all_calls(task: Task, merge: Merge, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return *run*, the function of *task*, with one call made of all."""

    @wraps(run)
    def run_merged(*args: Any, **kwargs: Any) -> Any:
        request = task.request
        claim = claim_of_tag((request.properties or {}).get("delivery_tag"))
        if request.called_directly or (merge.keep != "all" and (claim is None or not is_batch(claim[0]))):
            return run(*args, **kwargs)
        names = None if merge.keep == "all" else _signature(run)
        own = _call(names, args, kwargs, request)
        calls = {"": own}
        batch = None
        if claim is not None and is_batch(claim[0]):
            batch = BatchRun(claim[0], task.name, claim[1], request.id)
            calls = _all_calls(task, names, batch, own)
        merged, folded = _Run(batch, calls, []), None
        setattr(request, _RUN, merged)
        if merge.fold is not None and batch is not None:
            folded, together = _folded(merge, calls)
            if len(together) < len(calls):
                calls = _without_others(task, batch, calls, together)
                merged = _Run(batch, calls, [])
                setattr(request, _RUN, merged)
        try:
            result = _run(run, merge, list(calls.values()), folded, args, kwargs)
        except Retry as exc:
            if batch is not None and _is_for_one_call(exc, request):
                _at_the_broker(task, partial(deliver_retry, batch=batch, exc=exc, run=request))
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
    """Call *run* with the arguments that *merge* makes of *calls*. *folded*: what its function made of them."""
    if merge.keep == "all":
        return run(list(calls))
    if len(calls) == 1:
        return run(*args, **kwargs)
    call = folded if merge.fold is not None else calls[0] if merge.keep == "first" else calls[-1]
    if not isinstance(call, Call):
        raise TypeError(f"fold must return a Call, got: {call!r:.200}")
    return run(*call.args, **call.kwargs)


def _folded(merge: Merge, calls: Mapping[str, Call]) -> tuple[Call, list[str]]:
    """Return one call, which the function of *merge* made of some that follow each other, the run's own among them.

    A second value are the ids of these calls.
    """
    assert not isinstance(merge.fold, str | None), "it is imported"
    (first, folded), *others = calls.items()
    together = [first]
    for job_id, call in others:
        try:
            folded = merge.fold(folded, call)
        except NotMerged:
            if "" in together:
                break
            folded, together = call, []
        together.append(job_id)
    return folded, together


def _without_others(task: Task, batch: BatchRun, calls: Mapping[str, Call], together: Sequence[str]) -> dict[str, Call]:
    """Keep the calls in *together* for this run, and return them; the server makes a new batch of the others."""
    staying = set(together)
    going = [each for each in calls if each not in staying]

    def part() -> None:
        with broker_of_run(task) as (scheduler, _):
            if scheduler.split_batch(batch.job_id, going, fence=batch.fence) < 0:
                raise Ignore(f"task {task.request.id} is run with its calls by another worker by now")

    retry_while_down(task, part, "The calls that do not merge with task %s cannot be sent back")
    return {job_id: calls[job_id] for job_id in together}


def _is_for_one_call(exc: Retry, request: Context) -> bool:
    """Return whether the retry has the arguments of the first call, and so is not for the others."""
    retried = exc.sig
    return retried is not None and (
        tuple(retried.args or ()) == tuple(request.args or ()) and dict(retried.kwargs or {}) == (request.kwargs or {})
    )


def _signature(run: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of *run* if it names all arguments, else None."""
    try:
        signature = inspect.signature(run)
    except (TypeError, ValueError):  # made in C
        return None
    unnamed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return None if any(each.kind in unnamed for each in signature.parameters.values()) else signature


def _call(names: inspect.Signature | None, args: Sequence[Any], kwargs: Mapping[str, Any], request: Any) -> Call:
    """Return the call of *request*, its arguments by name if *names* has them all."""
    if names is not None:
        with suppress(TypeError):  # arguments that do not fit: the task fails in its own words
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


def _all_calls(task: Task, names: inspect.Signature | None, batch: BatchRun, own: Call) -> dict[str, Call]:
    """Return the calls of a batch, by job id, in the order in which they were published. *own*: the run's, as ""."""
    return retry_while_down(
        task, partial(_read, task, names, batch, own), "The calls that are merged with task %s cannot be read"
    )


def _read(task: Task, names: inspect.Signature | None, batch: BatchRun, own: Call) -> dict[str, Call]:
    calls = {"": own}
    published_us: dict[str, int] = {}
    requests = []
    with broker_of_run(task) as (scheduler, teller):
        after: int | None = 0
        while after is not None:
            page = scheduler.batch_calls(batch.job_id, fence=batch.fence, after=after)
            if page is None:
                raise Ignore(f"task {task.request.id} is run with its calls by another worker by now")
            published_us[""] = page.primary_us
            for caller in page.callers:
                published_us[caller.job_id] = caller.published_us
                request = teller.request_of(task.name, caller.task_id, caller.message)
                if request is not None:  # else its caller is told that it cannot be read
                    calls[caller.job_id] = _call(names, request.args, request.kwargs, request._context)
                    requests.append(request)
            after = page.after
        for request in requests:
            send_start(request, batch.run_id)
    return {job_id: calls[job_id] for job_id in sorted(calls, key=published_us.__getitem__)}


def _share_result(sender: Any = None, result: Any = None, **_: Any) -> None:
    run = vars(sender.request_stack.top or object).get(_RUN)
    if run is not None:
        results = dict(zip(run.calls, run.results, strict=False))
        _share(sender, run.batch, StoredSuccess(lambda job_id: results.get(job_id, result)))


def _share_failure(sender: Any = None, exception: Any = None, einfo: Any = None, **_: Any) -> None:
    run = vars(sender.request_stack.top or object).get(_RUN)
    if run is not None and not _leaves_a_dead_letter(sender):
        _share(sender, run.batch, StoredFailure(exception, getattr(einfo, "traceback", None)))


def _leaves_a_dead_letter(task: Task) -> bool:
    """Return whether a run of *task* that fails is a dead letter.

    The dispatcher tells its callers then, once the release has made it one: a call that is told before the release has
    ended, without its message, and no replay would run it.
    """
    is_rejected = task.acks_late and not task.acks_on_failure_or_timeout
    return settings_of(task.app).keep_failed or bool(is_rejected)


def _share(task: Task, batch: BatchRun | None, end: StoredSuccess | StoredFailure) -> None:
    """Tell the other callers how the run of *batch* has ended."""
    if batch is None:
        return
    is_repeated = bool((task.request.delivery_info or {}).get("redelivered"))
    _at_the_broker(task, partial(deliver_merged_result, batch=batch, end=end, is_repeated=is_repeated))


def _at_the_broker(task: Task, tell: Callable[..., object]) -> None:
    """Tell the other callers with *tell*. Those that cannot be told now the dispatcher tells, after the release."""
    try:
        with broker_of_run(task) as (scheduler, teller):
            tell(teller, scheduler=scheduler)
    except DOWN as exc:
        logger.warning(
            "The broker does not answer: the dispatcher will tell the callers that are merged with task %s: %s",
            task.request.id,
            exc,
        )
