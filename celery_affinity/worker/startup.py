"""Celery's signal `worker_init`: a process is a worker, and loads what a worker needs.

``self.request.affinity``, which each request of a task has, in any process. `request_affinity` has the answers.
"""

from typing import Any

from celery.app.task import Context
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


#: Name of the attribute of a request. A header that a user gave this name counts more, as it does in stock Celery.
_NAME = "affinity"


def _missing(context: Any, name: str) -> Any:
    """Answer for an attribute that the request itself does not have."""
    if name == _NAME:
        from .task_context import affinity_of_request  # not at the top: a producer needs none of it

        return affinity_of_request(context)
    raise AttributeError(f"{type(context).__name__!r} object has no attribute {name!r}")


# An attribute of the class would not do: Celery takes headers with the names of those for its own, and hides them.
Context.__getattr__ = _missing
