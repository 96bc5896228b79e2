"""What a task sees of its job's claim: ``self.request.affinity``, in every pool.

Each request gets the properties of its message, with the delivery tag of the claim, in whatever process or thread the
task runs; so nothing is added to a request, and a task that does not ask pays nothing. A request of a task that was
called directly, or that another transport brought, has an answer too.

Late-acked parts of chords that are delivered again: Celery would ignore a part while a dead process has its chord.

The process that ran the part may have died after it claimed the chord, and before it published the body. Celery ignores
whoever counts the last part while that claim lasts, so the part that is run again has to be counted after it.

What a process needs that runs tasks: the worker, or a process of its pool.

A pool process that is a fork has all that its worker has. One that was spawned is a fresh interpreter with a copy of
the app: it would run the first of merged calls alone, give its result to all, and have no `self.request.affinity`. So
the copy has `prepared` as a fixup: Celery calls that as soon as the copy is made, and sends `worker_process_init` once
all tasks are known.
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
    """The claim of the job that a task runs.

    *fence*: its fencing number. Each claim of the fleet has a higher number than all before it, so storage can refuse a
    write with a lower number than the highest it has seen: a worker sends it that was taken for dead. None if the task
    was not claimed: it was called directly, or came by another transport or from a queue that is not scheduled. *key*:
    the exclusive key of the job; if it has none, the key of its rate, after ``rate:``; None without any. *tenant*: the
    one on whose behalf the job runs. *calls*: the calls that were merged into this run; empty for a single call, unless
    the task merges with ``keep="all"``. *preemptions*: number of times that the task was stopped before, for a task of
    another tenant (`preempted`).
    """

    fence: int | None = None
    key: str | None = None
    tenant: str | None = None
    calls: tuple[Call, ...] = ()
    preemptions: int = 0

    @property
    def merged(self) -> int:
        """The number of calls that the run is made of."""
        return max(1, len(self.calls))


def affinity_in(properties: object) -> RequestAffinity:
    """Return what the *properties* of a message, as its request has them, say of the claim."""
    if not isinstance(properties, Mapping):
        return RequestAffinity()
    fence = fence_of_tag(properties.get("delivery_tag"))
    if fence is None:
        return RequestAffinity()
    rules = rules_in(properties.get(PROPERTY))
    return RequestAffinity(fence, key_in(rules), tenant_in(rules), preemptions=properties.get(PREEMPTIONS, 0))


def affinity_of_request(context: Context) -> RequestAffinity:
    """Return what a task sees of its claim."""
    return replace(affinity_in(context.properties), calls=calls_of_run(context))


#: Name of the attribute of a task's function that is wrapped.
_WRAPPED = "_celery_affinity_waits_for_its_chord"

#: Longest wait, s, in a slot: then the job is given back, so that other jobs come first, and no time limit ends a run
#: that has not begun. The pause between two looks.
_PATIENCE_S, _PAUSE_S = 0.5, 0.05


def install_redelivered_parts(app: Celery) -> None:
    """Have the late-acked tasks of *app* begin again only once nobody has claimed their chord."""
    for task in app.tasks.values():
        if task.acks_late and not hasattr(task.run, _WRAPPED):  # by another worker in this process
            task.run = _once_the_chord_is_free(task, task.run)
            setattr(task.run, _WRAPPED, True)


def _once_the_chord_is_free(task: Task, run: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(run)
    def run_part(*args: Any, **kwargs: Any) -> Any:
        request = task.request
        if _may_be_counted(request):
            _wait(task, request)
        return run(*args, **kwargs)

    return run_part


def _may_be_counted(request: Context) -> bool:
    if request.called_directly or not (request.chord and request.group):
        return False
    is_claim = claim_of_tag((request.properties or {}).get("delivery_tag")) is not None
    return is_claim and bool((request.delivery_info or {}).get("redelivered"))


def _wait(task: Task, request: Context) -> None:
    """Wait until nobody has claimed the chord of *request*. Raises NotBegunError if that lasts."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            check_claim(task.backend, request)
        except (ChordIsClaimedError, RedisError, OSError) as exc:
            if time.monotonic() >= deadline_s:
                raise NotStartedError(f"task {request.id} waits for its chord: {exc}") from exc
        else:
            return
        time.sleep(_PAUSE_S)


_FIXUP = f"{__name__}:prepared"


def prepare_process(app: Celery) -> None:
    """Have this process, and those that it starts for the pool, run the tasks of *app* as this transport needs it.

    Raises OptionError for a function of a merging task that cannot be imported, SettingError for a missing extra.
    """
    merged_run.install_merged_run(app)
    install_redelivered_parts(app)
    chords.install_chord_parts()
    if settings_of(app).traces:
        _install_wait_spans()
    app.fixups = {*app.fixups, _FIXUP}


def prepared_process(app: Celery) -> None:
    """Have this process, which was spawned, prepare its copy of *app* when it knows the tasks."""

    def on_start(sender: str | None = None, **_: Any) -> None:
        prepare_process(app)
        for name, task in app.tasks.items():  # Celery has built them, of the functions as they were
            task.__trace__ = build_tracer(name, task, app.loader, sender, app=app)

    worker_process_init.connect(on_start, weak=False)


def _install_wait_spans() -> None:
    try:
        from . import wait_spans  # not at the top: it needs the extra [otel]
    except ImportError as exc:
        raise SettingError(f"affinity_traces needs OpenTelemetry: {install_with('otel')} ({exc})") from exc
    wait_spans.install_wait_spans()
