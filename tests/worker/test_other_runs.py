"""Each pool run without a request occupies a slot, and no such run begins after the worker has stopped."""

import threading
from unittest.mock import Mock

import pytest
from celery.concurrency.thread import TaskPool

from celery_affinity.worker.pool import OtherRuns, derive_pool

from ..support.processes import wait_until


@pytest.fixture
def pool():
    made = derive_pool(TaskPool)(1)
    made.on_start()
    made.affinity_other_runs = OtherRuns(made, Mock())
    yield made
    made.on_stop()


def test_run_takes_a_slot_until_its_end(pool):
    go_on, ends = threading.Event(), []
    runs = pool.affinity_other_runs
    for _ in range(2):
        pool.apply_async(go_on.wait, callback=ends.append)
    assert runs.count() == 2, "one of them waits for the pool"
    calls = runs._on_change.call_count
    go_on.set()
    wait_until(lambda: runs.count() == 0, 10, "both ended")
    wait_until(lambda: ends == [True, True], 10, "who began them knows")
    assert runs._on_change.call_count == calls + 2


def test_failed_run_leaves_its_error_to_the_pool(pool):
    ended = Mock()
    given = pool.apply_async(lambda: 1 / 0, callback=ended)
    wait_until(lambda: pool.affinity_other_runs.count() == 0, 10, "it ended")
    with pytest.raises(ZeroDivisionError):
        given.get()
    ended.assert_not_called()


def test_no_run_begins_after_buffered_calls_were_returned(pool, caplog):
    pool.affinity_other_runs.is_closed = True
    target = Mock()
    assert pool.apply_async(target) is None
    target.assert_not_called()
    assert "the worker stops" in caplog.text
