"""Before Celery 5.7, a prefork pool that ends with a partly read result reads the rest first."""

import os

from celery_affinity.worker.pool import AffinityResults


class Reader:
    """A pool's reader of results on the pipe *fd*: one byte with the length, then as many bytes."""

    def __init__(self, fd):
        self.fileno_to_outq = {fd: "process"}

    def _recv_message(self, add_reader, fd, callback):
        (length,) = os.read(fd, 1)
        yield
        callback(os.read(fd, length))

    def _flush_outqueue(self, fd, remove, process_index, on_state_change):
        (length,) = os.read(fd, 1)
        on_state_change(os.read(fd, length))


class Results(AffinityResults, Reader):
    """The reader that a worker derives from it."""


def test_partly_read_result_is_completed_before_the_next():
    (reads, writes), got = os.pipe(), []
    try:
        results = Results(reads)
        os.write(writes, b"\x05")
        next(results._recv_message(None, reads, got.append))
        ends = []
        results._flush_outqueue(reads, ends.append, results.fileno_to_outq, got.append)
        assert (got, ends) == ([], []), "the rest has not come"
        os.write(writes, b"first\x03two")
        for _ in range(2):
            results._flush_outqueue(reads, ends.append, results.fileno_to_outq, got.append)
        assert (got, ends) == ([b"first", b"two"], [])
    finally:
        os.close(reads)
        os.close(writes)
