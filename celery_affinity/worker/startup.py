"""Install the worker integration on Celery's signal `worker_init`, and add ``affinity`` to all task requests.

`task_context` computes ``self.request.affinity``, in any process.
"""

from typing import Any

from celery.app.task import Context
from celery.signals import worker_init

from ..errors import AffinityError


@worker_init.connect
def _on_worker_init(sender: Any = None, **_: Any) -> None:
    from .install import install  # not at the top: a producer does not need it

    try:
        install(sender)
    except AffinityError as exc:
        # Celery swallows ordinary errors of a signal handler, and would start a worker that serves no queue.
        raise SystemExit(f"celery_affinity: {exc}") from exc


def _missing(context: Any, name: str) -> Any:
    """Return the value of an attribute that the request itself does not have."""
    if name == "affinity":  # a message header of this name takes precedence, as in stock Celery
        from .task_context import affinity_of_request  # not at the top: a producer does not need it

        return affinity_of_request(context)
    raise AttributeError(f"{type(context).__name__!r} object has no attribute {name!r}")


# A class attribute does not work: Celery treats headers with the names of class attributes as its own, and hides them.
Context.__getattr__ = _missing
