"""What a process needs that runs tasks: the worker, or a process of its pool.

A pool process that is a fork has all that its worker has. One that was spawned is a fresh interpreter with a copy of
the app: it would run the first of merged calls alone, give its result to all, and have no `self.request.affinity`. So
the copy has `prepared` as a fixup: Celery calls that as soon as the copy is made, and sends `worker_process_init` once
all tasks are known.
"""

from typing import Any

from celery import Celery
from celery.app.trace import build_tracer
from celery.signals import worker_process_init

from ..callers import chord_parts
from ..client.of_app import settings_of
from ..errors import SettingError
from ..versions import install_with
from . import merged_run, redelivered_parts

_FIXUP = f"{__name__}:prepared"


def prepare(app: Celery) -> None:
    """Have this process, and those that it starts for the pool, run the tasks of *app* as this transport needs it.

    Raises OptionError for a function of a merging task that cannot be imported, SettingError for a missing extra.
    """
    merged_run.install(app)
    redelivered_parts.install(app)
    chord_parts.install()
    if settings_of(app).traces:
        _install_wait_spans()
    app.fixups = {*app.fixups, _FIXUP}


def prepared(app: Celery) -> None:
    """Have this process, which was spawned, prepare its copy of *app* when it knows the tasks."""

    def on_start(sender: str | None = None, **_: Any) -> None:
        prepare(app)
        for name, task in app.tasks.items():  # Celery has built them, of the functions as they were
            task.__trace__ = build_tracer(name, task, app.loader, sender, app=app)

    worker_process_init.connect(on_start, weak=False)


def _install_wait_spans() -> None:
    try:
        from . import wait_spans  # not at the top: it needs the extra [otel]
    except ImportError as exc:
        raise SettingError(f"affinity_traces needs OpenTelemetry: {install_with('otel')} ({exc})") from exc
    wait_spans.install()
