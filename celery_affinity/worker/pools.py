"""Celery's pools from the inside: their sizes, the jobs that they still have, the processes that have none.

No other module but `fleet_pool` knows the private parts of pools.
"""

import select
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from celery.concurrency.base import BasePool
from celery.worker import state
from celery.worker.request import Request
from kombu.asynchronous.hub import Hub
from kombu.utils import functional

if TYPE_CHECKING:
    from billiard.pool import ApplyResult


def forks(pool: BasePool) -> bool:
    """Return whether *pool* runs tasks in processes that it forks."""
    return isinstance(pool, _prefork())


def is_prefork(pool: type[BasePool]) -> bool:
    """Return whether pools of the class *pool* run tasks in processes that they fork."""
    return issubclass(pool, _prefork())


@cache
def _prefork() -> Any:
    from celery.concurrency.prefork import TaskPool  # brings billiard's pool, which producers can do without

    return TaskPool


def size(pool: BasePool) -> int:
    """Return how many tasks *pool* can run at a time."""
    inner = getattr(pool, "_pool", None)
    if inner is None and forks(pool):
        return 0  # terminated: Celery's own count fails
    # Celery before 5.7 counts only the running ones of gevent's greenlets.
    greenlets: int | None = getattr(inner, "size", None)
    return int(pool.num_processes) if greenlets is None else greenlets


def writes_at_once(pool: BasePool, hub: Hub) -> bool:
    """Have a prefork pool write its jobs now, as *hub* would in its next iteration, to the processes that have none.

    The pipe of such a process is empty: it takes a job, and what does not fit is written by the loop. A process is here
    though it is dead while the pool reads what it has left: that job would lie in its pipe. Return whether there is
    nothing left to write, as in other pools. If there is, the loop watches the pipes from now on, though the pool's own
    part of this iteration may be over.
    """
    asyn: Any = getattr(pool, "_pool", None)
    on_poll_start = getattr(asyn, "on_poll_start", None)
    if on_poll_start is None:
        return True
    ready = asyn._all_inqueues - asyn._busy_workers
    idle = [each.inqW_fd for each in asyn._pool if each.inqW_fd in ready and each.is_alive()]
    if idle:
        hub.consolidate_callback(idle)
    if not asyn.outbound_buffer:
        return True
    on_poll_start()
    return False


def still_has(pool: BasePool, request: Request | None) -> bool:
    """Return whether *pool* runs *request* now or will."""
    if request is None or request in state.active_requests:
        return request is not None
    if not forks(pool):
        return request.is_in_the_pool is not None and bool(request.is_in_the_pool())
    return request._apply_result is not None and request._apply_result() in (_unfinished(pool) or {}).values()


def has_in_a_process(pool: BasePool, job: "Callable[[], ApplyResult | None]") -> bool:
    """Return whether a prefork pool has a job, in a process or for one. Any thread may ask. *job*: a weak reference."""
    if pool._pool is None:
        return True  # terminated: all ends are near
    result = job()
    if result is None or not any(each is result for each in list((_unfinished(pool) or {}).values())):
        return False
    process = result._write_to
    return process is None or any(each is process for each in list(pool._pool._pool))


def let_pauses_yield(pool: BasePool) -> None:
    """Let the other greenlets of *pool* run during kombu's pauses between two tries to reach the server.

    Celery imports kombu before it patches `time.sleep` for gevent and eventlet: each pause would hold the whole worker.
    """
    if pool.is_green:
        vars(functional)["sleep"] = time.sleep


def read_results(pool: BasePool) -> None:
    """Read the ends of tasks from a prefork pool, as the event loop would if it ran.

    Only the event loop's own thread may call this function.
    """
    results = getattr(getattr(pool, "_pool", None), "_result_handler", None)
    if results is None or "handle_event" not in vars(results):
        return  # another kind of pool, or one that no loop has read yet
    poller = select.poll()
    for fd in tuple(results.fileno_to_outq):
        poller.register(fd, select.POLLIN)
    for fd, events in poller.poll(0):
        if events & select.POLLIN:
            results.handle_event(fd)


def _unfinished(pool: BasePool) -> "dict[int, Any] | None":
    """Return the jobs of a prefork pool by number; None for another pool."""
    cache: dict[int, Any] | None = getattr(getattr(pool, "_pool", None), "_cache", None)
    return cache
