"""Due times with a real worker: the call with the earlier due time starts first."""

import pytest

from celery_affinity.schema.keys import Keys

from ..support.fleet import POOLS_IN_TIME


@pytest.mark.parametrize("pool", POOLS_IN_TIME)
def test_calls_start_in_the_order_of_their_due_times(fleet, pool):
    publish = fleet.tasks["pdf"].apply_async
    results = [publish((f"plain-{number}",)) for number in range(3)]
    results += [publish((f"within-{seconds}",), start_within=seconds) for seconds in (90, 20, 50)]
    results += [publish((f"deadline-{seconds}",), deadline=seconds) for seconds in (70, 5)]
    worker = fleet.start("worker", "pdf", pool=pool, concurrency=1)
    for result in results:
        result.get(timeout=60)
    assert [*fleet.ledger.starts()] == [
        *("deadline-5", "within-20", "within-50", "deadline-70", "within-90"),
        *("plain-0", "plain-1", "plain-2"),
    ], worker.log()
    assert fleet.redis.exists(Keys().key("due_times")) == 0, "no call is to come"
