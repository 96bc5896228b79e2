"""``--concurrency auto``: the fleet knows the number of slots that Celery chooses."""

import re

import celery
import pytest


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="new in Celery 5.7")
def test_worker_with_automatic_concurrency_has_matching_slots(fleet):
    worker = fleet.start("auto", "pdf", pool="threads", concurrency="auto")
    (slots,) = re.findall(r"concurrency: (\d+) \(thread\)", worker.log())
    (status,) = fleet.report.status().workers
    assert (status.slots, status.free) == (int(slots), int(slots))
    assert int(slots) > 0
