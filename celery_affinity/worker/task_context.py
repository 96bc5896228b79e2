"""Set up a process that runs tasks, and give tasks access to their job's claim as ``self.request.affinity``.

A forked pool process inherits the setup of its worker. A spawned pool process is a fresh interpreter with a copy of the
app. Without setup it would run the first of merged calls for all of them, and have no `self.request.affinity`. So the
copy has `prepared_process` as a fixup, which Celery calls after copying the app; `worker_process_init` is sent later,
when all tasks exist.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from celery import Celery
from celery.app.task import Context, Task
from celery.app.trace import build_tracer
from celery.signals import worker_process_init
from redis.exceptions import RedisError

from ..errors import SettingError
from ..leases.held_claim import claim_of_tag, fence_of_tag
from ..options.keys import key_in, tenant_in
from ..options.merge import Call
from ..publishing.app_config import settings_of
from ..publishing.message import PROPERTY
from ..publishing.option_sources import rules_in
from ..results import chords
from ..results.chords import ChordIsClaimedError, check_claim
from ..transport.inbox import PREEMPTIONS
from ..versions import install_with
from . import merged_run
from .merged_run import calls_of_run
from .request import NotStartedError


@dataclass(frozen=True)
class RequestAffinity:
    """The claim of the job that a task runs. It is computed from message properties when the task reads it."""

    #: Fencing token of the claim, higher than the tokens of all earlier claims of the fleet. Storage can refuse a write
    #: with a lower token than the highest it has seen: the sender's worker was declared dead. None if the task was not
    #: claimed: it was called directly, sent through another transport, or came from a queue that is not scheduled.

    fence: int | None = None
    #: Exclusive key of the job; if there is none, its rate key after ``rate:``; None without both.
    key: str | None = None
    #: Tenant on whose behalf the job runs.
    tenant: str | None = None
    #: Calls that were merged into this run. Empty for a single call, unless the task merges with ``keep="all"``.
    calls: tuple[Call, ...] = ()
    #: Number of times that the task was stopped before, for another tenant's task (`preempted`).
    preemptions: int = 0

    @property
    def merged(self) -> int:
        """The number of calls in the run."""
        return max(1, len(self.calls))


def affinity_in(properties: object) -> RequestAffinity:
    """Return the claim in the *properties* of a message or its request."""
    if not isinstance(properties, Mapping):
        return RequestAffinity()
    fence = fence_of_tag(properties.get("delivery_tag"))
    if fence is None:
        return RequestAffinity()
    rules = rules_in(properties.get(PROPERTY))
    return RequestAffinity(fence, key_in(rules), tenant_in(rules), preemptions=properties.get(PREEMPTIONS, 0))


def affinity_of_request(context: Context) -> RequestAffinity:
    """Return the claim of the task that runs with *context*."""
    return replace(affinity_in(context.properties), calls=calls_of_run(context))


#: Attribute that marks a wrapped task function.
_WRAPPED = "_celery_affinity_waits_for_its_chord"
#: Maximum seconds to wait in a slot. Then the job is returned, so that other jobs run first and no time limit ends an
#: unstarted run. Seconds between two checks.
_MAX_WAIT_S, _PAUSE_S = 0.5, 0.05


def install_redelivered_parts(app: Celery) -> None:
    """Make redelivered late-acked tasks of *app* start only when their chord is unclaimed.

    The process that ran a chord part may have died after it claimed the chord, and before it published the body. Celery
    ignores the part that is counted last while that claim lasts, so the redelivered part must be counted afterwards.
    """
    for task in app.tasks.values():
        if task.acks_late and not hasattr(task.run, _WRAPPED):  # wrapped by another worker in this process
            task.run = _wait_for_chord_first(task, task.run)
            setattr(task.run, _WRAPPED, True)


def _wait_for_chord_first(task: Task, run: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(run)
    def run_part(*args: Any, **kwargs: Any) -> Any:
        request = task.request
        if request.chord and request.group and not request.called_directly:
            is_claim = claim_of_tag((request.properties or {}).get("delivery_tag")) is not None
            if is_claim and (request.delivery_info or {}).get("redelivered"):
                _wait_for_chord(task, request)
        return run(*args, **kwargs)

    return run_part


def _wait_for_chord(task: Task, request: Context) -> None:
    """Wait until the chord of *request* is unclaimed. Raises NotStartedError if that takes too long."""
    deadline_s = time.monotonic() + _MAX_WAIT_S
    while True:
        try:
            check_claim(task.backend, request)
        except (ChordIsClaimedError, RedisError, OSError) as exc:
            if time.monotonic() >= deadline_s:
                raise NotStartedError(f"task {request.id} waits for its chord: {exc}") from exc
        else:
            return
        time.sleep(_PAUSE_S)


_FIXUP = f"{__name__}:prepared_process"


def prepare_process(app: Celery) -> None:
    """Set up this process, and the pool processes that it starts, to run the tasks of *app*.

    Raises OptionError for a merge function that cannot be imported, SettingError for a missing extra.
    """
    merged_run.install_merged_run(app)
    install_redelivered_parts(app)
    chords.install_chord_parts()
    if settings_of(app).traces:
        try:
            from . import wait_spans  # not at the top: it needs the extra [otel]
        except ImportError as exc:
            raise SettingError(f"affinity_traces needs OpenTelemetry: {install_with('otel')} ({exc})") from exc
        wait_spans.install_wait_spans()
    app.fixups = {*app.fixups, _FIXUP}


def prepared_process(app: Celery) -> None:
    """Prepare this spawned process' copy of *app* when its tasks exist."""

    def on_start(sender: str | None = None, **_: Any) -> None:
        prepare_process(app)
        for name, task in app.tasks.items():  # Celery has built the tracers from the unwrapped functions
            task.__trace__ = build_tracer(name, task, app.loader, sender, app=app)

    worker_process_init.connect(on_start, weak=False)
