"""Celery's pools, as those of a worker in a fleet: classes that derive from the one that `worker_pool` names.

After a lost connection Celery forgets the requests that no pool process has accepted, since a broker redelivers them.
Here claims outlive the connection: a job that was written to a pool process, and will run there, is kept. Only a job
that will surely not run is given back.
"""

import inspect
import select
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from celery.concurrency.base import BasePool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker.request import Request

from . import pools, runs
from .other_runs import CountingPool

if TYPE_CHECKING:
    from celery.concurrency.asynpool import AsynPool as _AsynPool
    from celery.concurrency.asynpool import ResultHandler as _ResultHandler
else:
    _AsynPool = _ResultHandler = object  # mixed into Celery's classes, which bring billiard's pool

#: Longest wait, ms, for the rest of a result at the end of a pool, before the pool looks whether its process is there.
_LOOK_MS = 500


class FleetPool(CountingPool):
    """A pool in the worker's own process. Errors of its runs reach `on_success`, as those of a prefork pool do."""

    def apply_async(self, target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run *target*, unless the job of its request was found to be another worker's when the task was accepted."""
        request = getattr(options.get("accept_callback"), "__self__", None)
        if isinstance(request, Request):  # else the errors are left to whoever began the run
            run = runs.in_the_main_thread if isinstance(self, SoloPool) else runs.in_a_thread
            target = partial(runs.unless_called_off, request, run, target)
        return super().apply_async(target, *args, **options)


class FleetProcesses(_AsynPool):
    """The processes of a prefork pool, as Celery's event loop drives them."""

    def flush(self) -> None:
        """Drop the jobs that will not run, and no others: not those that a process reads, nor marks of busy ones."""
        with _taken_for_accepted(self), _remembered(self):
            super().flush()

    def _track_child_process(self, proc: Any, hub: Any) -> None:
        """Watch *proc*, after a reconnect also a process that is still there though its end was noticed.

        Celery forgets the file number of such a process at once, and the process when the system says how it ended: an
        event loop that began in between would end the worker with an error.
        """
        if getattr(proc, "_sentinel_poll", 0) is not None:
            super()._track_child_process(proc, hub)
            return
        del proc._sentinel_poll
        with suppress(OSError, AttributeError):  # the process is gone: the pool's own timer replaces it
            super()._track_child_process(proc, hub)


class FleetResults(_ResultHandler):
    """Reads the results of a prefork pool, and goes on after a reconnect with those that it was reading.

    A process writes the length of a long result (an exception with its traceback, say) and then the result. At a
    reconnect Celery's event loop forgets that the length has been read: the result would be taken for a length, and the
    task's end, or the worker, would be lost.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: File number -> the process that writes there, and what reads its result.
        self._half_read: dict[int, tuple[object, Generator[None, None, None]]] = {}
        super().__init__(*args, **kwargs)

    def _recv_message(self, add_reader: Any, fd: int, *args: Any, **kwargs: Any) -> Generator[None, None, None]:
        process = self.fileno_to_outq.get(fd)
        reader, read = self._half_read.get(fd, (None, None))
        # A new process may have an old one's file number.
        if read is None or reader is not process or inspect.getgeneratorstate(read) == inspect.GEN_CLOSED:
            read = super()._recv_message(add_reader, fd, *args, **kwargs)
            self._half_read[fd] = process, read
        return read

    def _flush_outqueue(self, fd: int, remove: Callable[[int], None], *args: Any) -> None:
        """Read a result of a pool that is joined: first the rest of one, as Celery does by itself since 5.7.

        The rest would be taken for a length: the end of the task would be lost, and a warm shutdown last half a minute,
        or for ever.
        """
        process, read = self._half_read.get(fd, (None, None))
        is_half_read = (
            not hasattr(self, "_finish_partial_read")
            and read is not None
            and process is self.fileno_to_outq.get(fd)
            and inspect.getgeneratorstate(read) == inspect.GEN_SUSPENDED
        )
        if read is None or not is_half_read:
            super()._flush_outqueue(fd, remove, *args)
            return
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        if not poller.poll(_LOOK_MS):
            return  # the pool looks again, or finds that the process is gone
        try:
            next(read, None)
        except (OSError, EOFError):
            remove(fd)


@contextmanager
def _taken_for_accepted(pool: _AsynPool) -> Iterator[None]:
    """Mark jobs that a process has got, or is getting, as accepted: `flush` drops all others.

    A job that a dead process has got is dropped after the flush, not by it: the pool throws away the pipe of a dead
    process only if it finds a job for the pipe. Otherwise the next process would read the pipe, and run the job. A job
    that is back in the buffer is dropped by the flush, which empties the buffer, even if `_write_to` is another
    process' pipe by now.
    """
    written = [
        (job, job._write_to)
        for job in pool._cache.values()
        if job._write_to is not None and not job._accepted and job not in pool.outbound_buffer
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
def _remembered(pool: _AsynPool) -> Iterator[None]:
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


@cache
def derived(base: type[BasePool]) -> type[BasePool]:
    """Return a class of pools that derives from *base*, Celery's own or a user's, and has its name."""
    if pools.is_prefork(base):
        is_derived = issubclass(base, CountingPool)
        return base if is_derived else _derived(base, CountingPool, Pool=_processes_of(base.Pool))
    return base if issubclass(base, FleetPool) else _derived(base, FleetPool)


def _processes_of(base: type[_AsynPool]) -> type[_AsynPool]:
    processes: type[_AsynPool] = _derived(
        base, FleetProcesses, ResultHandler=_derived(base.ResultHandler, FleetResults)
    )
    return processes


def _derived(base: type, *mixins: type, **attributes: Any) -> Any:
    """Return a class with the name of *base*, in its module: Celery looks at both of a pool's class."""
    return type(base.__name__, (*mixins, base), {"__module__": base.__module__, **attributes})
