"""Real workers send their metric deltas: the first averages immediately, the rest with heartbeats."""

import json

import pytest

from celery_affinity.reports.type_metrics import metrics_of
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.fleet import in_time
from ..support.processes import wait_until

pytestmark = pytest.mark.whole

#: Seconds between heartbeats, much longer than any wait here.
LONG_S = 120


class Counted:
    """The server's metrics of the type "pdf"."""

    def __init__(self, client):
        self.reader = Reader(client, Keys())

    @property
    def runs(self):
        return sum(each.runs.number for each in metrics_of(self.reader, ["pdf"]))

    @property
    def waits(self):
        return sum(each.started for each in metrics_of(self.reader, ["pdf"]))

    @property
    def average_us(self):
        return self.reader.fields("durations", ["pdf"]).get("pdf")


@pytest.fixture
def counted(redis_client):
    return Counted(redis_client)


@pytest.mark.parametrize("pool", in_time("solo", "threads", "prefork"))
def test_first_average_of_a_type_precedes_the_next_heartbeat(fleet, counted, pool):
    worker = fleet.start("one", "pdf", pool=pool, timeout_s=3 * LONG_S, heartbeat_s=LONG_S)
    assert counted.average_us is None
    fleet.tasks["pdf"].delay("first", 0.3).get(timeout=20)
    wait_until(lambda: counted.average_us, 20, "the average")
    assert 300_000 <= int(counted.average_us) < 20_000_000
    assert (counted.runs, counted.waits) == (1, 1)
    fleet.tasks["pdf"].delay("second", 0.3).get(timeout=20)
    fleet.tasks["pdf"].delay("last", 0.9)
    wait_until(lambda: fleet.ledger.starts()["last"], 20, "it starts")
    worker.term()
    worker.wait(30)
    assert (counted.runs, counted.waits) == (3, 3)


def test_heartbeats_send_metric_deltas(fleet, counted):
    fleet.start("one", "pdf", pool="solo", heartbeat_s=1)
    for number in range(5):
        fleet.tasks["pdf"].delay(f"job-{number}").get(timeout=20)
    wait_until(lambda: (counted.runs, counted.waits) == (5, 5), 20, "all are counted")


def test_jobs_with_prebuilt_requests_are_counted_once(fleet, counted):
    for number in range(40):
        fleet.tasks["pdf"].delay(f"job-{number}")
    fleet.start("one", "pdf", heartbeat_s=1, CONF=json.dumps({"affinity_lookahead": 8}))
    wait_until(lambda: counted.runs == 40, 20, "all are counted")
    assert counted.waits == 40
