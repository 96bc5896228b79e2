"""Late-acked parts of chords that are delivered again: Celery would ignore a part while a dead process has its chord.

The process that ran the part may have died after it claimed the chord, and before it published the body. Celery ignores
whoever counts the last part while that claim lasts, so the part that is run again has to be counted after it.
"""

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from celery import Celery
from celery.app.task import Context, Task
from redis.exceptions import RedisError

from ..callers.chord_parts import ChordIsClaimedError, check_claim
from ..membership.held import claim_in
from .started_request import NotBegunError

#: Name of the attribute of a task's function that is wrapped.
_WRAPPED = "_celery_affinity_waits_for_its_chord"

#: Longest wait, s, in a slot: then the job is given back, so that other jobs come first, and no time limit ends a run
#: that has not begun. The pause between two looks.
_PATIENCE_S, _PAUSE_S = 0.5, 0.05


def install(app: Celery) -> None:
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
    is_claim = claim_in((request.properties or {}).get("delivery_tag")) is not None
    return is_claim and bool((request.delivery_info or {}).get("redelivered"))


def _wait(task: Task, request: Context) -> None:
    """Wait until nobody has claimed the chord of *request*. Raises NotBegunError if that lasts."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            check_claim(task.backend, request)
        except (ChordIsClaimedError, RedisError, OSError) as exc:
            if time.monotonic() >= deadline_s:
                raise NotBegunError(f"task {request.id} waits for its chord: {exc}") from exc
        else:
            return
        time.sleep(_PAUSE_S)
