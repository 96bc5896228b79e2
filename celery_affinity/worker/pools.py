"""Celery's pools from the inside: the jobs that a pool still has after a reconnect.

No other module knows the private parts of pools. After a lost connection Celery forgets the requests that no pool
process has accepted, since a broker redelivers them. Here claims outlive the connection: a job that was written to a
pool process, and will run there, is kept. Only a job that will surely not run is given back.
"""

import inspect
import select
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

from celery.concurrency.base import BasePool
from celery.worker import state
from celery.worker.request import Request
from kombu.asynchronous.hub import Hub
from kombu.utils import functional

if TYPE_CHECKING:
    from billiard.pool import ApplyResult

#: Longest wait, ms, for the rest of a result at the end of a pool, before the pool looks whether its process is there.
_LOOK_MS = 500


def forks(pool: BasePool) -> bool:
    """Return whether *pool* runs tasks in processes that it forks."""
    return isinstance(pool, _prefork())


@cache
def _prefork() -> Any:
    from celery.concurrency.prefork import TaskPool  # brings billiard's pool, which producers can do without

    return TaskPool


def size(pool: BasePool) -> int:
    """Return how many tasks *pool* can run at a time."""
    if forks(pool) and pool._pool is None:
        return 0  # terminated: Celery's own count fails
    # Celery before 5.7 counts only the running ones of gevent's greenlets.
    greenlets: int | None = getattr(getattr(pool, "_pool", None), "size", None)
    return int(pool.num_processes) if greenlets is None else greenlets


def writes_at_once(pool: BasePool) -> bool:
    """Have a prefork pool write its jobs in this iteration of the loop, though the pool's own part of it may be over.

    Return whether *pool* writes: other pools have nothing to write.
    """
    on_poll_start = getattr(getattr(pool, "_pool", None), "on_poll_start", None)
    if on_poll_start is None:
        return False
    on_poll_start()
    return True


def writes_to_idle_processes(pool: BasePool, hub: Hub) -> None:
    """Have a prefork pool write its jobs now, as *hub* would in its next iteration, to the processes that have none.

    The pipe of such a process is empty: it takes a job, and what does not fit is written by the loop. A process is here
    though it is dead while the pool reads what it has left: that job would lie in its pipe.
    """
    asyn = pool._pool
    ready = asyn._all_inqueues - asyn._busy_workers
    idle = [each.inqW_fd for each in asyn._pool if each.inqW_fd in ready and each.is_alive()]
    if idle:
        hub.consolidate_callback(idle)


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


def spare_what_is_written(pool: BasePool) -> None:
    """Make the flush of a prefork pool keep the jobs that a process already reads, and the marks of busy processes."""
    flush: Callable[[], Any] | None = getattr(pool, "flush", None)
    if _unfinished(pool) is None or flush is None or hasattr(flush, "__wrapped__"):
        return

    @wraps(flush)
    def sparing() -> Any:
        if pool._pool is None:
            return flush()  # terminated
        with _taken_for_accepted(pool), _remembered(pool._pool):
            return flush()

    pool.flush = sparing


def keep_what_is_half_read(pool: BasePool) -> None:
    """Make a prefork pool go on, after a reconnect, with the results that it was reading.

    A process writes the length of a long result (an exception with its traceback, say) and then the result. At a
    reconnect Celery's event loop forgets that the length has been read: the result would be taken for a length, and the
    task's end, or the worker, would be lost.
    """
    results = getattr(getattr(pool, "_pool", None), "_result_handler", None)
    receive: Callable[..., Generator[None, None, None]] | None = getattr(results, "_recv_message", None)
    if results is None or receive is None or hasattr(receive, "__wrapped__"):
        return
    reading: dict[int, tuple[object, Generator[None, None, None]]] = {}

    @wraps(receive)
    def receiving(add_reader: Any, fd: int, *args: Any, **kwargs: Any) -> Generator[None, None, None]:
        process = results.fileno_to_outq.get(fd)
        reader, read = reading.get(fd, (None, None))
        # A new process may have an old one's file number.
        if read is None or reader is not process or inspect.getgeneratorstate(read) == inspect.GEN_CLOSED:
            read = receive(add_reader, fd, *args, **kwargs)
            reading[fd] = process, read
        return read

    results._recv_message = receiving
    if not hasattr(results, "_finish_partial_read") and hasattr(results, "_flush_outqueue"):
        _finish_at_the_end(results, reading)


def _finish_at_the_end(results: Any, reading: dict[int, tuple[object, Generator[None, None, None]]]) -> None:
    """Have a pool that is joined read the rest of a result before it reads the next one, as Celery does since 5.7.

    The rest would be taken for a length: the end of the task would be lost, and a warm shutdown last half a minute, or
    for ever.
    """
    flush: Callable[..., None] = results._flush_outqueue

    @wraps(flush)
    def flushing(fd: int, remove: Callable[[int], None], *args: Any) -> None:
        process, read = reading.get(fd, (None, None))
        if read is None or process is not results.fileno_to_outq.get(fd):
            return flush(fd, remove, *args)
        if inspect.getgeneratorstate(read) != inspect.GEN_SUSPENDED:
            return flush(fd, remove, *args)
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        if not poller.poll(_LOOK_MS):
            return None  # the pool looks again, or finds that the process is gone
        try:
            next(read, None)
        except (OSError, EOFError):
            remove(fd)
        return None

    results._flush_outqueue = flushing


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


def watch_who_is_ending(pool: BasePool) -> None:
    """Have a prefork pool watch anew, after a reconnect, a process that is still there though its end was noticed.

    Celery forgets the file number of such a process at once, and the process when the system says how it ended: an
    event loop that began in between would end the worker with an error.
    """
    track: Callable[[Any, Any], None] | None = getattr(getattr(pool, "_pool", None), "_track_child_process", None)
    if track is None or hasattr(track, "__wrapped__"):
        return

    @wraps(track)
    def tracking(process: Any, hub: Any) -> None:
        if getattr(process, "_sentinel_poll", 0) is not None:
            track(process, hub)
        else:
            del process._sentinel_poll
            with suppress(OSError, AttributeError):  # the process is gone: the pool's own timer replaces it
                track(process, hub)

    pool._pool._track_child_process = tracking


@contextmanager
def _taken_for_accepted(pool: BasePool) -> Iterator[None]:
    """Mark jobs that a process has got, or is getting, as accepted: `flush` drops all others.

    A job that a dead process has got is dropped after the flush, not by it: the pool throws away the pipe of a dead
    process only if it finds a job for the pipe. Otherwise the next process would read the pipe, and run the job. A job
    that is back in the buffer is dropped by the flush, which empties the buffer, even if `_write_to` is another
    process' pipe by now.
    """
    written = [
        (job, job._write_to)
        for job in (_unfinished(pool) or {}).values()
        if job._write_to is not None and not job._accepted and job not in pool._pool.outbound_buffer
    ]
    for job, _ in written:
        job._accepted = True
    try:
        yield
    finally:
        for job, process in written:
            job._accepted = False
            if not process.is_alive():
                job.discard()


@contextmanager
def _remembered(pool: BasePool) -> Iterator[None]:
    """Keep the accepted jobs of an AsynPool, no others, and the knowledge that their processes are busy.

    A flush in Celery before 5.6.3 forgets jobs that run, so that their ends are lost, or remembers jobs that never
    will. A flush before 5.7 forgets which processes are busy, so that the next job waits behind a long one while
    another process is idle.
    """
    accepted = {number: job for number, job in pool._cache.items() if job._accepted}
    busy = [job._write_to for job in accepted.values() if job._write_to and job._write_to.inqW_fd in pool._busy_workers]
    try:
        yield
    finally:
        pool._cache.clear()
        pool._cache.update((number, job) for number, job in accepted.items() if not job.ready())
        pool._busy_workers.update(process.inqW_fd for process in busy if process.is_alive())


def _unfinished(pool: BasePool) -> "dict[int, Any] | None":
    """Return the jobs of a prefork pool by number; None for another pool."""
    cache: dict[int, Any] | None = getattr(getattr(pool, "_pool", None), "_cache", None)
    return cache
