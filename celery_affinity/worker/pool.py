"""Celery's pools in a worker of the fleet: their size, the jobs that they still have, and classes derived from them.

No other module accesses private parts of pools. Requests without a claim (of broadcast tasks, and of queues left to
kombu) and pool runs without a request (such as celery-batches' runs) also occupy slots. The worker reports both to the
server, which would otherwise place jobs on occupied slots.
"""

import inspect
import select
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from billiard.einfo import ExceptionInfo
from celery.concurrency.base import BasePool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.worker import state
from celery.worker.request import Request
from celery.worker.state import reserved_requests
from kombu.asynchronous.hub import Hub
from kombu.utils import functional

from ..log_limit import limited_logger
from ..schema.constants import FORCE
from ..schema.values import encode_part
from .buffers import BufferedRequest

if TYPE_CHECKING:
    from billiard.pool import ApplyResult
    from celery.worker.consumer import Consumer


def pool_forks(pool: BasePool) -> bool:
    """Return True if *pool* runs tasks in processes that it forks."""
    return isinstance(pool, _prefork_pool())


@cache
def _prefork_pool() -> Any:
    from celery.concurrency.prefork import TaskPool  # imports billiard's pool, which producers do not need

    return TaskPool


def pool_size(pool: BasePool) -> int:
    """Return the number of tasks that *pool* can run concurrently."""
    inner = getattr(pool, "_pool", None)
    if inner is None and pool_forks(pool):
        return 0  # terminated: Celery's own count fails
    # Celery before 5.7 counts only the running greenlets of gevent.
    greenlets: int | None = getattr(inner, "size", None)
    return int(pool.num_processes) if greenlets is None else greenlets


def writes_immediately(pool: BasePool, hub: Hub) -> bool:
    """Make a prefork pool write jobs to its idle processes now, instead of in the next iteration of *hub*.

    The pipe of an idle process is empty, so it takes a job. The loop writes the part that does not fit. A dead process
    is still listed while the pool reads its remaining results: a job written to its pipe would be stuck. Return True if
    nothing remains to be written, as in other pools. Otherwise the loop watches the pipes from now on, because the
    pool's own part of this iteration may be over.
    """
    asyn: Any = getattr(pool, "_pool", None)
    on_poll_start = getattr(asyn, "on_poll_start", None)
    if on_poll_start is None:
        return True
    ready = asyn._all_inqueues - asyn._busy_workers
    idle = [process.inqW_fd for process in asyn._pool if process.inqW_fd in ready and process.is_alive()]
    if idle:
        hub.consolidate_callback(idle)
    if not asyn.outbound_buffer:
        return True
    on_poll_start()
    return False


def still_has_job(pool: BasePool, request: Request | None) -> bool:
    """Return True if *pool* runs *request* now or will run it."""
    if request is None or request in state.active_requests:
        return request is not None
    if not pool_forks(pool):
        return request.is_in_the_pool is not None and bool(request.is_in_the_pool())
    return request._apply_result is not None and request._apply_result() in (_unfinished(pool) or {}).values()


def has_in_a_process(pool: BasePool, job: "Callable[[], ApplyResult | None]") -> bool:
    """Return True if a process of a prefork pool has or will get *job*, a weak reference. Callable from any thread."""
    if pool._pool is None:
        return True  # terminated: all tasks end soon
    result = job()
    if result is None or not any(other is result for other in list((_unfinished(pool) or {}).values())):
        return False
    process = result._write_to
    return process is None or any(alive is process for alive in list(pool._pool._pool))


def let_pauses_yield(pool: BasePool) -> None:
    """Let other greenlets of *pool* run while kombu waits between two attempts to reach the server.

    Celery imports kombu before it patches `time.sleep` for gevent and eventlet, so each pause would block the worker.
    """
    if pool.is_green:
        vars(functional)["sleep"] = time.sleep


def read_results(pool: BasePool) -> None:
    """Read the ends of tasks from a prefork pool like a running event loop. Only the loop's thread may call this."""
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
    """Return the jobs of a prefork pool by number, or None for another pool."""
    cache: dict[int, Any] | None = getattr(getattr(pool, "_pool", None), "_cache", None)
    return cache


def run_unless_reassigned(
    request: Request, errors: tuple[type[BaseException], ...], target: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run the task of *request*, unless another worker may have claimed the job when the task was accepted.

    Return the result of *target*, or an error in *errors* as an ExceptionInfo. Other errors are raised.
    """
    if getattr(request, "is_cancelled_before_start", False):
        return None
    try:
        return target(*args, **kwargs)
    except errors:
        return ExceptionInfo()


def is_accepted_inline() -> bool:
    """Return True: a request being submitted is in the pool, and the solo pool runs it during the submission."""
    return True


def liveness_check(pool: BasePool, handle: Any) -> Callable[[], bool]:
    """Return a function that is True while *pool* has the run of *handle*. For a custom pool it is always True."""
    if pool_forks(pool):
        return _never_alive if handle is None else partial(has_in_a_process, pool, ref(handle))
    if isinstance(pool, SoloPool):
        return _never_alive
    if handle is None and pool.is_green:  # eventlet's pool returns no greenlet; no other greenlet ran since
        handle = next(reversed(pool._pool_map.values()), None)
    return partial(_is_alive, handle)


def _never_alive() -> bool:
    return False


def _is_alive(run: Any) -> bool:
    """Return True if a future of threads, or a greenlet, has not ended."""
    return not (run.f.done() if hasattr(run, "f") else getattr(run, "dead", False))


_unclaimed: WeakSet[Request] = WeakSet()
_lock = threading.RLock()  # a thread counts the requests for heartbeats


def add_unclaimed(request: Request) -> None:
    """Track *request* while Celery has it."""
    with _lock:
        _unclaimed.add(request)


def unclaimed_requests() -> list[Request]:
    """Return the requests without a claim that have not ended yet."""
    if not _unclaimed:
        return []
    with _lock:
        return [request for request in _unclaimed if request in reserved_requests]


logger = limited_logger(__name__)


class _Run:
    """One run, from its submission to the pool until its end."""

    def __init__(self) -> None:
        self.is_alive = is_accepted_inline


class OtherRuns:
    """Tracks the runs in *pool* without a request. When their number changes, it calls *on_change* in any thread."""

    def __init__(self, pool: BasePool, on_change: Callable[[], object]) -> None:
        self._pool, self._on_change = pool, on_change
        self._runs: set[_Run] = set()
        #: True if no further run may begin, because the stopping worker has already returned the buffered jobs.
        self.is_closed = False

    def count(self) -> int:
        """Return the number of runs that are waiting or running in the pool. Any thread can call this method."""
        if not self._runs:
            return 0
        alive = [run for run in tuple(self._runs) if run.is_alive()]
        self._runs.intersection_update(alive)
        return len(alive)

    def begin(self, submit: Callable[..., Any], target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Submit *target* to the pool with *submit* and return the result, or None if no further run may begin."""
        if self.is_closed:
            logger.warning("%r does not run: the worker stops and has returned the jobs in its buffers", target)
            return None
        run = _Run()
        self._runs.add(run)
        self._on_change()
        if pool_forks(self._pool):
            for name in ("callback", "error_callback"):
                options[name] = self._end_after(run, options.get(name))
        else:
            target = self._end_after(run, target)
        try:
            handle = submit(target, *args, **options)
        except BaseException:
            self._end(run)
            raise
        run.is_alive = liveness_check(self._pool, handle)
        return handle

    def _end_after(self, run: _Run, call: Callable[..., Any] | None) -> Callable[..., Any]:
        """Return a function that ends *run* after *call*."""

        def ending(*args: Any, **kwargs: Any) -> Any:
            try:
                return None if call is None else call(*args, **kwargs)
            finally:
                self._end(run)

        return ending

    def _end(self, run: _Run) -> None:
        self._runs.discard(run)
        self._on_change()


class CountingPool(BasePool):
    """A pool that counts runs without a request."""

    #: None until the worker has joined for the first time.
    affinity_other_runs: OtherRuns | None = None

    def apply_async(self, target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run *target*, and count the run in `OtherRuns` unless its accept callback belongs to a request."""
        accepted = getattr(options.get("accept_callback"), "__self__", None)
        if self.affinity_other_runs is None or isinstance(accepted, Request):
            return super().apply_async(target, *args, **options)
        return self.affinity_other_runs.begin(super().apply_async, target, *args, **options)


if TYPE_CHECKING:
    from celery.concurrency.asynpool import AsynPool as _AsynPool
    from celery.concurrency.asynpool import ResultHandler as _ResultHandler
else:
    _AsynPool = _ResultHandler = object  # mixed into Celery's classes, which import billiard's pool

#: Maximum milliseconds to wait for the rest of a result while the pool ends. Then the pool checks the result's process.
_MAX_WAIT_MS = 500


class AffinityPool(CountingPool):
    """A pool in the worker's own process. Errors of its runs reach `on_success`, as in a prefork pool.

    prefork passes every error of a task to Celery, raised in its body or after it. Stock Celery's other pools leave an
    error after the body (an unstorable result, a failing `on_failure`) to a thread or greenlet whose end is unnoticed.
    """

    def apply_async(self, target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run *target*, unless another worker may have claimed the request's job when the task was accepted."""
        request = getattr(options.get("accept_callback"), "__self__", None)
        if isinstance(request, Request):  # the submitter of any other run handles its errors
            # A solo pool raises the worker's stop. There is no worker to end in a thread or a greenlet.
            errors = (Exception,) if isinstance(self, SoloPool) else (Exception, WorkerShutdown, WorkerTerminate)
            target = partial(run_unless_reassigned, request, errors, target)
        return super().apply_async(target, *args, **options)


class AffinityProcesses(_AsynPool):
    """The processes of a prefork pool, driven by Celery's event loop.

    After a lost connection, Celery drops the requests that no pool process has accepted, because a broker redelivers
    them. Claims outlive the connection, so a job written to a process, which will run there, is kept. Only jobs that
    will certainly not run are returned.
    """

    def flush(self) -> None:
        """Drop only the jobs that will not run: keep jobs that a process reads, and the marks of busy processes."""
        with _written_jobs_accepted(self), _accepted_jobs_kept(self):
            super().flush()

    def _track_child_process(self, proc: Any, hub: Any) -> None:
        """Watch *proc*. After a reconnect, also watch a listed process whose end was already noticed.

        Celery deletes the file number of such a process immediately, and the process once the system reports how it
        ended. An event loop that starts in between would end the worker with an error.
        """
        if getattr(proc, "_sentinel_poll", 0) is not None:
            super()._track_child_process(proc, hub)
            return
        del proc._sentinel_poll
        with suppress(OSError, AttributeError):  # the process has ended: the pool's own timer replaces it
            super()._track_child_process(proc, hub)


class AffinityResults(_ResultHandler):
    """Reads the results of a prefork pool, and resumes half-read results after a reconnect.

    A process writes the length of a long result (such as an exception with its traceback) before the result. At a
    reconnect, Celery's event loop forgets that it has read the length. It would parse the result as a length, and lose
    the task's end or the worker.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Maps a file number to the process that writes there, and to the reader of its result.
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
        """Read a result while the pool is joined: first the rest of a half-read result, like Celery since 5.7.

        Otherwise the rest would be parsed as a length. The end would be lost, and a warm shutdown would last half a
        minute or forever.
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
        if not poller.poll(_MAX_WAIT_MS):
            return  # the pool tries again, or finds that the process has ended
        try:
            next(read, None)
        except (OSError, EOFError):
            remove(fd)


@contextmanager
def _written_jobs_accepted(pool: _AsynPool) -> Iterator[None]:
    """Mark jobs that a process has received, or is receiving, as accepted: `flush` drops all others.

    A job in the pipe of a dead process is dropped after the flush. The pool discards the pipe of a dead process only if
    it finds a job for the pipe; otherwise the next process would read the pipe and run the job. The flush drops a job
    that is back in the buffer, because it empties the buffer, even if `_write_to` is already another process' pipe.
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
def _accepted_jobs_kept(pool: _AsynPool) -> Iterator[None]:
    """Keep exactly the accepted jobs of an AsynPool, and the record that their processes are busy.

    A flush in Celery before 5.6.3 forgets running jobs, so that their ends are lost, or keeps jobs that will never run.
    A flush before 5.7 forgets which processes are busy, so that the next job waits behind a long one while another
    process is idle.
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
def derive_pool(base: type[BasePool]) -> type[BasePool]:
    """Return a pool class that derives from *base* and has its name."""
    if not issubclass(base, _prefork_pool()):
        return base if issubclass(base, AffinityPool) else _derive(base, AffinityPool)
    if issubclass(base, CountingPool):
        return base
    results = _derive(base.Pool.ResultHandler, AffinityResults)
    processes = _derive(base.Pool, AffinityProcesses, ResultHandler=results)
    pool: type[BasePool] = _derive(base, CountingPool, Pool=processes)
    return pool


def _derive(base: type, *mixins: type, **attributes: Any) -> Any:
    """Return a class with the name and module of *base*, because Celery checks both for a pool."""
    return type(base.__name__, (*mixins, base), {"__module__": base.__module__, **attributes})


#: Maximum number of tasks that the server knows to stop on request.
_MAX_STOPPABLE_TASKS = 50


class PoolSlots:
    """The slots of *consumer*'s pool, of any kind, as its membership uses them."""

    def __init__(self, consumer: "Consumer") -> None:
        self._consumer = consumer
        self._stoppable_tasks: list[str] = []

    @property
    def forks(self) -> bool:
        return pool_forks(self._consumer.pool)

    @property
    def blocks_the_loop(self) -> bool:
        return isinstance(self._consumer.pool, SoloPool)

    @property
    def stops_by_force(self) -> bool:
        return getattr(self._consumer.pool.terminate_job, "__func__", None) is not BasePool.terminate_job

    @property
    def stops(self) -> str:
        return FORCE if self.stops_by_force else " ".join(map(encode_part, self._stoppable_tasks))

    def stops_when_asked(self, task: str) -> bool:
        """Record that tasks named *task* check whether they must stop. Return True if that is new."""
        is_new = task not in self._stoppable_tasks and len(self._stoppable_tasks) < _MAX_STOPPABLE_TASKS
        if is_new:
            self._stoppable_tasks.append(task)
        return is_new

    def size(self) -> int:
        """Return the pool's maximum number of running jobs. With --autoscale, it grows to that number on demand."""
        controller = self._consumer.controller
        scaled: Any = getattr(controller, "autoscaler", None) or controller
        return int(getattr(scaled, "max_concurrency", None) or pool_size(self._consumer.pool))

    def unclaimed(self) -> int:
        other_runs: OtherRuns | None = getattr(self._consumer.pool, "affinity_other_runs", None)
        return len(unclaimed_requests()) + (0 if other_runs is None else other_runs.count())

    def still_has(self, request: object) -> bool:
        pool = self._consumer.pool
        if isinstance(
            request, BufferedRequest
        ):  # Celery keeps buffered jobs; a stopping worker drops them unless they run
            return request.is_in_the_pool() and not pool.affinity_other_runs.is_closed
        return still_has_job(pool, request)
