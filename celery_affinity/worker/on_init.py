"""Celery's signal `worker_init`: a process is a worker, and loads what a worker needs."""

from typing import Any

from celery.signals import worker_init

from ..errors import AffinityError


@worker_init.connect
def _on_worker_init(sender: Any = None, **_: Any) -> None:
    from .install import install  # not at the top: a producer needs none of it

    try:
        install(sender)
    except AffinityError as exc:
        # Celery swallows ordinary errors of a signal handler, and would start a worker that serves nobody.
        raise SystemExit(f"celery_affinity: {exc}") from exc
