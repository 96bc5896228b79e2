"""Pool processes, results and jobs that Celery's pools must keep during a reconnect."""

import os
import pickle
import signal
import struct
from itertools import count
from types import SimpleNamespace

import pytest
from celery.concurrency.asynpool import ResultHandler
from celery.concurrency.prefork import TaskPool
from kombu.asynchronous import Hub, get_event_loop, set_event_loop

from celery_affinity.worker.pool import (
    AffinityProcesses,
    AffinityResults,
    derive_pool,
    has_in_a_process,
    writes_immediately,
)

from ..support.processes import wait_until

_file_numbers = count()

#: The processes of a prefork pool, as a worker derives them.
Processes = derive_pool(TaskPool).Pool


@pytest.fixture
def pipe():
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("is_closed", [False, True])
def test_reconnect_tracks_a_process_with_noticed_end_again(pipe, is_closed):
    tracked = []
    hub = SimpleNamespace(add_reader=lambda fd, *_: tracked.append(os.fstat(fd)))
    pool = object.__new__(Processes)
    pool._event_process_exit = None
    process = SimpleNamespace(_popen=SimpleNamespace(sentinel=-1 if is_closed else pipe[0]))
    process._sentinel_poll = None  # the state after the notice of the process's end
    pool._track_child_process(process, hub)
    assert tracked == ([] if is_closed else [os.fstat(pipe[0])])
    if not is_closed:
        pool._track_child_process(process, hub)
        assert len(tracked) == 2, "as Celery does at each reconnect"
        os.close(process._sentinel_poll)


class Results(AffinityResults, ResultHandler):
    """The part of a prefork pool that reads results."""

    def __init__(self, fd):
        self._half_read, self.fileno_to_outq = {}, {fd: "first process"}
        self.read_so_far = []

    def read(self, fd):
        """Continue to read like the event loop does when *fd* is readable: with a new reader after a reconnect."""
        next(self._recv_message(lambda *_: None, fd, self.read_so_far.append), None)


def test_partly_read_result_survives_a_reconnect(pipe):
    read, write = pipe
    results = Results(read)
    result = pickle.dumps("result")
    os.write(write, struct.pack(">i", len(result)))
    results.read(read)
    os.write(write, result)
    results.read(read)
    os.write(write, struct.pack(">i", len(result)) + result)
    results.read(read)
    assert results.read_so_far == ["result", "result"]


def test_partial_result_of_a_dead_process_is_forgotten(pipe):
    read, write = pipe
    results = Results(read)
    os.write(write, struct.pack(">i", 1000))
    results.read(read)
    results.fileno_to_outq[read] = "next process"  # the new pipe reuses the old pipe's number
    result = pickle.dumps("result")
    os.write(write, struct.pack(">i", len(result)) + result)
    results.read(read)
    assert results.read_so_far == ["result"]


class Celerys:
    """The part of a prefork pool that is flushed. A flush drops the jobs without an accept."""

    def __init__(self, **jobs):
        self.outbound_buffer = [job for job in jobs.values() if job.is_buffered]
        self._cache = jobs
        self._busy_workers = {job._write_to.inqW_fd for job in jobs.values() if job._write_to}
        self.dies_in_flush = None
        for name, job in jobs.items():
            job.discard = lambda name=name: self._cache.pop(name)

    def flush(self):
        for job in list(self._cache.values()):
            if not job._accepted:
                job.discard()
        self.outbound_buffer.clear()
        if self.dies_in_flush is not None:
            self.dies_in_flush.lives = False


class OldCelerys(Celerys):
    """A prefork pool before Celery 5.6.3: a flush forgets all jobs, or none while a job is being written."""

    is_writing = False

    def flush(self):
        if not self.is_writing:
            self._cache.clear()
        self.outbound_buffer.clear()
        self._busy_workers.clear()


class PreforkPool(AffinityProcesses, Celerys):
    """The pool that a worker derives from it."""


class OldPreforkPool(AffinityProcesses, OldCelerys):
    """The old pool that a worker derives from it."""


def process(lives=True):
    each = SimpleNamespace(lives=lives, inqW_fd=next(_file_numbers))
    each.is_alive = lambda: each.lives
    return each


def job(process, *, is_buffered=False, accepted=False):
    return SimpleNamespace(_write_to=process, _accepted=accepted, is_buffered=is_buffered, ready=lambda: False)


def test_reconnect_keeps_only_jobs_that_a_process_has():
    pool = PreforkPool(
        running=job(process(), accepted=True),
        in_the_pipe=job(process()),
        not_written=job(None, is_buffered=True),
        put_back_with_a_pipe_that_was_reused=job(process(), is_buffered=True),
    )
    pool.flush()
    assert set(pool._cache) == {"running", "in_the_pipe"}
    assert not pool._cache["in_the_pipe"]._accepted


def test_reconnect_drops_jobs_of_a_dead_process():
    dying = process()
    pool = PreforkPool(in_the_pipe=job(dying), of_a_dead_one=job(process(lives=False)), in_another=job(process()))
    pool.dies_in_flush = dying
    pool.flush()
    assert set(pool._cache) == {"in_another"}


@pytest.mark.parametrize("is_writing", [False, True])
def test_reconnect_of_old_celery_keeps_jobs_and_busy_processes(is_writing):
    busy = process()
    pool = OldPreforkPool(
        running=job(busy, accepted=True),
        not_written=job(None, is_buffered=True),
        of_a_dead_one=job(process(lives=False)),
    )
    pool.is_writing = is_writing
    pool.flush()
    assert set(pool._cache) == {"running"}
    assert pool._busy_workers == {busy.inqW_fd}


@pytest.fixture
def hub():
    before = get_event_loop()
    hub = Hub()
    set_event_loop(hub)
    yield hub
    hub.close()
    set_event_loop(before)


@pytest.fixture
def asynpool(hub):
    pool = Processes(processes=1, threads=False)
    pool.register_with_event_loop(hub)
    yield pool
    pool.terminate()


def _iterate_until(hub, true):
    loop = hub.create_loop()
    for _ in range(2000):
        if true():
            return
        hub.call_later(0.01, lambda: None)
        next(loop)
    raise AssertionError("the loop runs, and it does not come true")


def _note(path, text):
    with path.open("a") as file:
        file.write(text)


def test_unread_job_of_a_dead_process_is_not_inherited(hub, asynpool, tmp_path):
    _iterate_until(hub, lambda: asynpool._all_inqueues)
    (process,) = asynpool._pool
    os.kill(process.pid, signal.SIGSTOP)
    dropped = asynpool.apply_async(_note, (tmp_path / "ran", "dropped "))
    _iterate_until(hub, lambda: dropped._write_to is not None)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    asynpool.flush()
    assert dropped not in asynpool._cache.values()
    following = asynpool.apply_async(_note, (tmp_path / "ran", "following"))
    _iterate_until(hub, following.ready)
    assert (tmp_path / "ran").read_text() == "following"


def test_loop_writes_a_job_that_no_idle_process_takes(hub, asynpool, tmp_path, monkeypatch):
    def writable():
        return asynpool._all_inqueues & {fd for fd, _ in hub.poller.poll(0)}

    _iterate_until(hub, lambda: asynpool._all_inqueues)
    next(hub.create_loop())  # the pool had nothing to write
    given = asynpool.apply_async(_note, (tmp_path / "ran", "given"))
    assert not writable(), "it looks at the beginning of an iteration"
    with monkeypatch.context() as patch:
        patch.setattr(asynpool._pool[0], "is_alive", lambda: False)
        assert not writes_immediately(SimpleNamespace(_pool=asynpool), hub)
    assert writable()
    _iterate_until(hub, given.ready)


def test_job_given_at_a_jobs_end_is_written_first(hub, asynpool, tmp_path):
    given = []

    def next_one(_):
        given.append(asynpool.apply_async(_note, (tmp_path / "ran", "second")))
        assert writes_immediately(SimpleNamespace(_pool=asynpool), hub)
        given.append(given[0]._write_to)

    _iterate_until(hub, lambda: asynpool._all_inqueues)
    (process,) = asynpool._pool
    asynpool.apply_async(_note, (tmp_path / "ran", "first "), callback=next_one)
    _iterate_until(hub, lambda: given and given[0].ready())
    assert given[1] is process
    assert (tmp_path / "ran").read_text() == "first second"


def test_busy_or_dead_process_gets_no_job(hub, asynpool):
    _iterate_until(hub, lambda: asynpool._all_inqueues)
    (process,) = asynpool._pool
    given = asynpool.apply_async(os.getpid)
    asynpool._busy_workers.add(process.inqW_fd)
    assert not writes_immediately(SimpleNamespace(_pool=asynpool), hub)
    assert given._write_to is None
    asynpool._busy_workers.clear()
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not process.is_alive(), 5, "it is dead")
    assert not writes_immediately(SimpleNamespace(_pool=asynpool), hub)
    assert given._write_to is None


def test_other_pools_have_nothing_to_write():
    assert writes_immediately(SimpleNamespace(), None)
    assert writes_immediately(SimpleNamespace(_pool=SimpleNamespace()), None)


@pytest.mark.parametrize(("writes_to", "has"), [("alive", True), ("dead", False), (None, True)])
def test_pool_has_jobs_of_its_own_processes(writes_to, has):
    processes = {"alive": object(), "dead": object(), None: None}
    job = SimpleNamespace(_write_to=processes[writes_to])
    billiard_pool = SimpleNamespace(_pool=[object(), processes["alive"]], _cache={1: job})
    assert has_in_a_process(SimpleNamespace(_pool=billiard_pool), lambda: job) is has


def test_pool_does_not_have_a_finished_job():
    job = SimpleNamespace(_write_to=None)
    billiard_pool = SimpleNamespace(_pool=[object()], _cache={})
    assert not has_in_a_process(SimpleNamespace(_pool=billiard_pool), lambda: job)
