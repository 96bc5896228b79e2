"""What Celery's pools must not forget at a reconnect."""

import os
import pickle
import struct
from types import SimpleNamespace

import pytest
from celery.concurrency.asynpool import ResultHandler

from celery_affinity.pools import keep_what_is_half_read


@pytest.fixture
def pipe():
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    os.close(read)
    os.close(write)


class Results:
    """The part of a prefork pool that reads them."""

    _recv_message = ResultHandler._recv_message
    handle_event = None

    def __init__(self, fd):
        self.fileno_to_outq = {fd: "first process"}
        self.read_so_far = []

    def read(self, fd):
        """Read on as the event loop does when *fd* has something; a reconnect makes it ask for a reader again."""
        next(self._recv_message(lambda *_: None, fd, self.read_so_far.append), None)


def _pool_with(results):
    return SimpleNamespace(_pool=SimpleNamespace(_result_handler=results))


def test_a_result_that_is_half_read_at_a_reconnect_is_read_to_its_end(pipe):
    read, write = pipe
    results = Results(read)
    keep_what_is_half_read(_pool_with(results))
    result = pickle.dumps("result")
    os.write(write, struct.pack(">i", len(result)))
    results.read(read)
    os.write(write, result)
    results.read(read)
    os.write(write, struct.pack(">i", len(result)) + result)
    results.read(read)
    assert results.read_so_far == ["result", "result"]


def test_half_a_result_of_a_dead_process_is_forgotten(pipe):
    read, write = pipe
    results = Results(read)
    keep_what_is_half_read(_pool_with(results))
    os.write(write, struct.pack(">i", 1000))
    results.read(read)
    results.fileno_to_outq[read] = "next process"  # its pipe has got the old one's number
    result = pickle.dumps("result")
    os.write(write, struct.pack(">i", len(result)) + result)
    results.read(read)
    assert results.read_so_far == ["result"]


def test_other_pools_are_left_alone():
    keep_what_is_half_read(SimpleNamespace())
    keep_what_is_half_read(SimpleNamespace(_pool=SimpleNamespace()))
