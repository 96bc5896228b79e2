"""The run of merged calls, in the process of the pool: one call is made of all, the task runs once, all callers know.

`install` wraps the function of each task that merges, before a pool forks. A run that cannot read its other callers
does not begin. The functions that a user gives (`fold`, `split`) run here, so that an error in one is the task's
failure; `callers.sharing` tells the others.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import Any, NamedTuple

from celery import Celery
from celery.app.task import Context, Task
from celery.exceptions import Ignore, Retry
from celery.signals import task_failure, task_success

from ..callers.caller_events import send_start
from ..callers.known_ends import Failed, Succeeded
from ..callers.sharing import DOWN, Batch, retry, share
from ..client.first_try import mode_of
from ..client.merge_functions import with_functions
from ..client.of_app import merge_of, settings_of
from ..errors import NotMerged
from ..log_limit import limited_logger
from ..membership.held import claim_in
from ..rules.marks import is_batch
from ..rules.merging import Call, Merge
from ..rules.protocol import MAX_PRIORITY
from ..rules.untrusted import clamped
from .broker_of_run import broker, once_it_answers

logger = limited_logger(__name__)


#: Name of the attribute of a request that has its `_Run`.
_RUN = "affinity_run"

#: Name of the attribute of a task's function that is wrapped.
_WRAPPED = "_celery_affinity_runs_all_calls"


class _Run(NamedTuple):
    """A run of calls. *batch*: None for one call alone. *calls*: by job id, in order of publishing; "": its own.

    *results*: of the calls, in that order; empty if all have the run's result.
    """

    batch: Batch | None
    calls: Mapping[str, Call]
    results: list[Any]


def install(app: Celery) -> None:
    """Have the tasks of *app* that merge run once for all calls of a batch.

    Raises OptionError for a function that cannot be imported.
    """
    merging = [(task, with_functions(merge)) for task in app.tasks.values() if (merge := merge_of(task))]
    for task, merge in merging:
        if not hasattr(task.run, _WRAPPED):  # by another worker in this process
            task.run = _for_all_calls(task, merge, task.run)
            setattr(task.run, _WRAPPED, True)
    if merging:
        task_success.connect(_share_result, weak=False, dispatch_uid="celery_affinity: share a result")
        task_failure.connect(_share_failure, weak=False, dispatch_uid="celery_affinity: share a failure")


def calls_of(request: object) -> tuple[Call, ...]:
    """Return the calls of the run that *request* stands for; none for a run that is not merged."""
    run = vars(request).get(_RUN)
    return tuple(run.calls.values()) if isinstance(run, _Run) else ()


def _for_all_calls(task: Task, merge: Merge, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return *run*, the function of *task*, with one call made of all."""

    @wraps(run)
    def run_merged(*args: Any, **kwargs: Any) -> Any:
        request = task.request
        claim = claim_in((request.properties or {}).get("delivery_tag"))
        if request.called_directly or (merge.keep != "all" and (claim is None or not is_batch(claim[0]))):
            return run(*args, **kwargs)
        names = None if merge.keep == "all" else _signature(run)
        own = _call(names, args, kwargs, request)
        calls = {"": own}
        batch = None
        if claim is not None and is_batch(claim[0]):
            batch = Batch(claim[0], task.name, claim[1], request.id)
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
                _at_the_broker(task, partial(retry, batch=batch, exc=exc, run=request))
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


def _without_others(task: Task, batch: Batch, calls: Mapping[str, Call], together: Sequence[str]) -> dict[str, Call]:
    """Keep the calls in *together* for this run, and return them; the server makes a new batch of the others."""
    staying = set(together)
    going = [each for each in calls if each not in staying]

    def part() -> None:
        with broker(task) as (scheduler, _):
            if scheduler.part(batch.job_id, going, fence=batch.fence) < 0:
                raise Ignore(f"task {task.request.id} is run with its calls by another worker by now")

    once_it_answers(task, part, "The calls that do not merge with task %s cannot be sent back")
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
        priority=clamped((request.delivery_info or {}).get("priority"), 0, MAX_PRIORITY, 0),
        headers=request.headers or {},
    )


def _all_calls(task: Task, names: inspect.Signature | None, batch: Batch, own: Call) -> dict[str, Call]:
    """Return the calls of a batch, by job id, in the order in which they were published. *own*: the run's, as ""."""
    return once_it_answers(
        task, partial(_read, task, names, batch, own), "The calls that are merged with task %s cannot be read"
    )


def _read(task: Task, names: inspect.Signature | None, batch: Batch, own: Call) -> dict[str, Call]:
    calls = {"": own}
    published_us: dict[str, int] = {}
    requests = []
    with broker(task) as (scheduler, teller):
        after: int | None = 0
        while after is not None:
            page = scheduler.callers(batch.job_id, fence=batch.fence, after=after)
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
        _share(sender, run.batch, Succeeded(lambda job_id: results.get(job_id, result)))


def _share_failure(sender: Any = None, exception: Any = None, einfo: Any = None, **_: Any) -> None:
    run = vars(sender.request_stack.top or object).get(_RUN)
    if run is not None and not _leaves_a_dead_letter(sender):
        _share(sender, run.batch, Failed(exception, getattr(einfo, "traceback", None)))


def _leaves_a_dead_letter(task: Task) -> bool:
    """Return whether a run of *task* that fails is a dead letter.

    The dispatcher tells its callers then, once the release has made it one: a call that is told before the release has
    ended, without its message, and no replay would run it.
    """
    is_rejected = task.acks_late and not task.acks_on_failure_or_timeout
    return settings_of(task.app).keep_failed or bool(is_rejected)


def _share(task: Task, batch: Batch | None, end: Succeeded | Failed) -> None:
    """Tell the other callers how the run of *batch* has ended."""
    if batch is None:
        return
    is_repeated = bool((task.request.delivery_info or {}).get("redelivered"))
    _at_the_broker(task, partial(share, batch=batch, end=end, is_repeated=is_repeated))


def _at_the_broker(task: Task, tell: Callable[..., object]) -> None:
    """Tell the other callers with *tell*. Those that cannot be told now the dispatcher tells, after the release."""
    try:
        with broker(task) as (scheduler, teller):
            tell(teller, scheduler=scheduler)
    except DOWN as exc:
        logger.warning(
            "The broker does not answer: the dispatcher will tell the callers that are merged with task %s: %s",
            task.request.id,
            exc,
        )
