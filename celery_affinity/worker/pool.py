"""Celery's pools from the inside: their sizes, the jobs that they still have, the processes that have none.

No other module but `fleet_pool` knows the private parts of pools.

One run of a task in a pool: its errors reach Celery, and the pool says whether the run goes on.

prefork tells Celery of every error of a task, in its body or after it. The pools that run tasks in the worker's own
process leave an error after the body (a result that cannot be stored, an `on_failure` that fails) to a thread or a
greenlet that nobody watches: stock Celery never learns that such a task has ended.

Requests that take a slot of the pool without a claim: those of broadcast tasks, and of queues left to kombu.

Count pool runs without a request, such as the batches of celery-batches: each run occupies a slot.

A custom task strategy can submit any function to the pool. The worker must report these runs to the server, like
requests without a claim. Otherwise the server would place jobs on occupied slots.

Celery's pools, as those of a worker in a fleet: classes that derive from the one that `worker_pool` names.

After a lost connection Celery forgets the requests that no pool process has accepted, since a broker redelivers them.
Here claims outlive the connection: a job that was written to a pool process, and will run there, is kept. Only a job
that will surely not run is given back.

Celery's pool, as the worker's membership in the fleet sees it (`Pool`).
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
    """Return whether *pool* runs tasks in processes that it forks."""
    return isinstance(pool, _prefork())


def is_prefork(pool: type[BasePool]) -> bool:
    """Return whether pools of the class *pool* run tasks in processes that they fork."""
    return issubclass(pool, _prefork())


@cache
def _prefork() -> Any:
    from celery.concurrency.prefork import TaskPool  # brings billiard's pool, which producers can do without

    return TaskPool


def pool_size(pool: BasePool) -> int:
    """Return how many tasks *pool* can run at a time."""
    inner = getattr(pool, "_pool", None)
    if inner is None and pool_forks(pool):
        return 0  # terminated: Celery's own count fails
    # Celery before 5.7 counts only the running ones of gevent's greenlets.
    greenlets: int | None = getattr(inner, "size", None)
    return int(pool.num_processes) if greenlets is None else greenlets


def writes_immediately(pool: BasePool, hub: Hub) -> bool:
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


def still_has_job(pool: BasePool, request: Request | None) -> bool:
    """Return whether *pool* runs *request* now or will."""
    if request is None or request in state.active_requests:
        return request is not None
    if not pool_forks(pool):
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


def run_unless_reassigned(request: Request | None, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run the task of *request*, unless the job was found to be another worker's when the task was accepted."""
    return None if getattr(request, "is_called_off", False) else run(*args, **kwargs)


def run_in_main_thread(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run *target* in a solo pool. Return its result, or its error as an ExceptionInfo. A worker's stop is raised."""
    try:
        return target(*args, **kwargs)
    except Exception:
        return ExceptionInfo()


def run_in_thread(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run *target* in a thread or a greenlet. Return its result, or its error as an ExceptionInfo."""
    try:
        return target(*args, **kwargs)
    except (Exception, WorkerShutdown, WorkerTerminate):  # in such a thread or greenlet there is no worker to end
        return ExceptionInfo()


def is_accepted_inline() -> bool:
    """Return True: a request that is being given to a pool is there, and the solo pool runs it meanwhile."""
    return True


def liveness_check(pool: BasePool, given: Any) -> Callable[[], bool]:
    """Return a function that says whether *pool* still has the run for which `apply_async` has returned *given*.

    The function says True for a pool that is not Celery's own: nobody can know.
    """
    if pool_forks(pool):
        return _is_over if given is None else partial(has_in_a_process, pool, ref(given))
    if isinstance(pool, SoloPool):
        return _is_over
    if given is None and pool.is_green:  # eventlet's pool returns no greenlet; no other one ran meanwhile
        given = next(reversed(pool._pool_map.values()), None)
    return partial(_is_alive, given)


def _is_over() -> bool:
    return False


def _is_alive(run: Any) -> bool:
    """Return whether a future of threads, or a greenlet, has not ended."""
    return not (run.f.done() if hasattr(run, "f") else getattr(run, "dead", False))


_unclaimed: WeakSet[Request] = WeakSet()
_lock = threading.RLock()  # heartbeats count the requests, in a thread of their own


def add_unclaimed(request: Request) -> None:
    """Remember *request* for as long as Celery has it."""
    with _lock:
        _unclaimed.add(request)


def unclaimed_requests() -> list[Request]:
    """Return the requests without a claim that have not ended yet."""
    if not _unclaimed:
        return []
    with _lock:
        return [each for each in _unclaimed if each in reserved_requests]


def count_unclaimed() -> int:
    """Return how many slots these requests take: one each."""
    return len(unclaimed_requests())


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

    def begin(self, give: Callable[..., Any], target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Submit *target* to the pool with *give* and return the result, or None if no further run may begin."""
        if self.is_closed:
            logger.warning("%r is not run: the worker stops, and has given back the jobs in buffers", target)
            return None
        run = _Run()
        self._runs.add(run)
        self._on_change()
        if pool_forks(self._pool):
            for name in ("callback", "error_callback"):
                options[name] = self._ending(run, options.get(name))
        else:
            target = self._ending(run, target)
        try:
            given = give(target, *args, **options)
        except BaseException:
            self._end(run)
            raise
        run.is_alive = liveness_check(self._pool, given)
        return given

    def _ending(self, run: _Run, call: Callable[..., Any] | None) -> Callable[..., Any]:
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
    _AsynPool = _ResultHandler = object  # mixed into Celery's classes, which bring billiard's pool

#: Longest wait, ms, for the rest of a result at the end of a pool, before the pool looks whether its process is there.
_LOOK_MS = 500


class AffinityPool(CountingPool):
    """A pool in the worker's own process. Errors of its runs reach `on_success`, as those of a prefork pool do."""

    def apply_async(self, target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run *target*, unless the job of its request was found to be another worker's when the task was accepted."""
        request = getattr(options.get("accept_callback"), "__self__", None)
        if isinstance(request, Request):  # the submitter of any other run handles its errors
            run = run_in_main_thread if isinstance(self, SoloPool) else run_in_thread
            target = partial(run_unless_reassigned, request, run, target)
        return super().apply_async(target, *args, **options)


class AffinityProcesses(_AsynPool):
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


class AffinityResults(_ResultHandler):
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
def derive_pool(base: type[BasePool]) -> type[BasePool]:
    """Return a class of pools that derives from *base*, Celery's own or a user's, and has its name."""
    if is_prefork(base):
        is_derived = issubclass(base, CountingPool)
        return base if is_derived else _derived(base, CountingPool, Pool=_processes_of(base.Pool))
    return base if issubclass(base, AffinityPool) else _derived(base, AffinityPool)


def _processes_of(base: type[_AsynPool]) -> type[_AsynPool]:
    processes: type[_AsynPool] = _derived(
        base, AffinityProcesses, ResultHandler=_derived(base.ResultHandler, AffinityResults)
    )
    return processes


def _derived(base: type, *mixins: type, **attributes: Any) -> Any:
    """Return a class with the name of *base*, in its module: Celery looks at both of a pool's class."""
    return type(base.__name__, (*mixins, base), {"__module__": base.__module__, **attributes})


#: How many tasks the server is told of at most that stop when they are asked to.
_MOST_ASKING = 50


class PoolSlots:
    """The pool of *consumer*, of any kind."""

    def __init__(self, consumer: "Consumer") -> None:
        self._consumer = consumer
        self._asking: list[str] = []

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
        return FORCE if self.stops_by_force else " ".join(map(encode_part, self._asking))

    def stops_when_asked(self, task: str) -> bool:
        """Record that tasks of this name ask whether they are to stop. Return whether that is new."""
        is_new = task not in self._asking and len(self._asking) < _MOST_ASKING
        if is_new:
            self._asking.append(task)
        return is_new

    def size(self) -> int:
        """Return how many jobs the pool may run at once. With --autoscale it grows to that number only if needed."""
        controller = self._consumer.controller
        scaled: Any = getattr(controller, "autoscaler", None) or controller
        return int(getattr(scaled, "max_concurrency", None) or pool_size(self._consumer.pool))

    def unclaimed(self) -> int:
        other_runs: OtherRuns | None = getattr(self._consumer.pool, "affinity_other_runs", None)
        return count_unclaimed() + (0 if other_runs is None else other_runs.count())

    def still_has(self, request: object) -> bool:
        pool = self._consumer.pool
        if isinstance(request, BufferedRequest):  # Celery drops none of these; without a run, the worker's stop does
            return request.is_in_the_pool() and not pool.affinity_other_runs.is_closed
        return still_has_job(pool, request)
