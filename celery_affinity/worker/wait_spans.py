"""Record the wait of a job as an OpenTelemetry span, `wait TYPE`, in the pool process that has the provider.

The span belongs to the call's trace: opentelemetry-instrumentation-celery writes the call's context into the message's
headers, and creates the spans of the publish and of the run. The span of the wait is created when its job runs, with
past times. Errors of a provider reach Celery's signals, which log them, and the task runs.
"""

from collections.abc import Iterable
from typing import Any

from celery.app.task import Context as Request
from celery.signals import task_postrun, task_prerun
from opentelemetry import propagate, trace
from opentelemetry.context import Context

from ..leases.held_claim import claim_of_tag
from ..publishing.option_sources import mode_of
from ..schema.job_record import is_batch
from ..transport.inbox import WAIT
from .merged_run import calls_of_run

#: Tracer of the provider that this process has when the first span is created.
_tracer = trace.get_tracer("celery_affinity")


def install_wait_spans() -> None:
    """Record the waits of all jobs with wait times, in this process and in the processes that it forks."""
    task_prerun.connect(_record_before_run, weak=False, dispatch_uid="celery_affinity: record a wait")
    task_postrun.connect(_record_after_run, weak=False, dispatch_uid="celery_affinity: record a wait of merged calls")


def _record_before_run(task: Any = None, **_: Any) -> None:
    if not _is_merged(task.request):
        _record(task)


def _record_after_run(task: Any = None, **_: Any) -> None:
    if _is_merged(task.request):  # the run has now read its other calls, and split off the calls that `fold` refused
        _record(task)


def _is_merged(request: Request) -> bool:
    claim = claim_of_tag((request.properties or {}).get("delivery_tag"))
    return claim is not None and is_batch(claim[0])


def _record(task: Any) -> None:
    """Create the wait's span of *task*'s job, if the message contains the times."""
    request: Request = task.request
    wait = (request.properties or {}).get(WAIT)
    if request.called_directly or not isinstance(wait, dict) or "until_ns" not in wait:
        return
    context = propagate.extract(request.headers or {})
    is_first = not _has_a_span(context)
    span = _tracer.start_span(
        f"wait {wait['type']}",
        None if is_first else context,  # None: the span of the run, if there is one
        attributes=_attributes(task, wait),
        links=_links(calls_of_run(request)[1:]),
        start_time=wait["since_ns"],
    )
    if is_first and not _has_a_span(None):
        _add_run_to_trace(request, span)
    span.end(wait["until_ns"])


def _has_a_span(context: Context | None) -> bool:
    return trace.get_current_span(context).get_span_context().is_valid


def _add_run_to_trace(request: Request, span: trace.Span) -> None:
    """Add the run of a call without a trace, whose producer creates none, to the trace of *span*."""
    headers: dict[str, str] = {}
    propagate.inject(headers, trace.set_span_in_context(span))
    for name, value in headers.items():
        setattr(request, name, value)


def _attributes(task: Any, wait: dict[str, Any]) -> dict[str, str | int]:
    request = task.request
    attributes = {
        "celery.task_name": task.name,
        "messaging.message.id": request.id,
        "messaging.destination.name": wait["type"],
        "celery_affinity.mode": "on demand" if mode_of(request.properties) else "queued",
        "celery_affinity.priority": (request.delivery_info or {}).get("priority") or 0,
        "celery_affinity.worker": request.hostname,
        "celery_affinity.deliveries": wait["deliveries"],
        "celery_affinity.key": request.affinity.key,
        "celery_affinity.calls": request.affinity.merged,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _links(calls: Iterable[Any]) -> list[trace.Link]:
    """Return links to the publishes of *calls* that are in a trace."""
    spans = (trace.get_current_span(propagate.extract(call.headers)) for call in calls)
    return [trace.Link(span.get_span_context()) for span in spans if span.get_span_context().is_valid]
