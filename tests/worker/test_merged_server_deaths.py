"""A server dies by ``kill -9`` while a merged run is reported to its callers, and restarts with its data.

Each caller gets one end, and no caller waits forever.
"""

import json
import time
from collections import Counter

import pytest
import redis
from celery import Celery, chain, chord
from celery.exceptions import ChordError

from celery_affinity import ResultLostError
from celery_affinity.embedded import EmbeddedServer

from ..support.merging import Merging
from ..support.processes import wait_until

pytestmark = pytest.mark.whole

APP = "tests.support.apps.merging_dies"

#: Maximum seconds until all ends are reported: the clients' retries, Celery's reconnect, and reports by ticks.
SOON_S = 60

#: Maximum seconds until a result is considered lost: it is missing for 60 s, and the next check is at most 80 s later.
LOST_S = 200

#: Seconds of the outage.
OUTAGE_S = 3.0

#: Which server dies, and where: as in `test_merged_deaths`. "both": one server has jobs and results.
DEATHS = [
    ("both", "store_result", 3, True),
    ("broker", "ack_batch_reports", 1, True),
    *(
        pytest.param(*each, marks=pytest.mark.slow)
        for each in (
            ("both", "store_result", 1, True),
            ("both", "publish", 2, True),
            ("both", "on_chord_part_return", 2, True),
            ("both", "ack_batch_reports", 1, False),
            ("broker", "store_result", 1, False),
            ("broker", "publish", 2, False),
            ("broker", "publish", 2, True),
            ("broker", "on_chord_part_return", 3, True),
            ("broker", "ack_batch_reports", 1, False),
            ("results", "store_result", 1, True),
            ("results", "store_result", 2, False),
            ("results", "on_chord_part_return", 2, False),
            ("results", "on_chord_part_return", 2, True),
        )
    ),
]


@pytest.fixture
def servers(tmp_path):
    options = ("--appendonly", "yes")
    with (
        EmbeddedServer(directory=tmp_path / "broker", options=options) as broker,
        EmbeddedServer(directory=tmp_path / "results", options=options) as results,
    ):
        yield {"broker": broker, "results": results}


class Calls:
    """Calls of `told` that merge. Another worker runs their links, chains and chord."""

    def __init__(self, merging, backend):
        self.merging, self.backend = merging, backend
        patient = json.dumps({"result_backend_always_retry": True})  # the other worker is not under test
        merging.start("threads", types=["others"], RESULT_URL=backend.url, CONF=patient)
        self.first = self.told(0).apply_async()
        self.linked = [
            self.told(n).apply_async(link=[self.other("add", [n]), self.other("add", [n, n])]) for n in range(1, 4)
        ]
        self.chained = [chain(self.told(n), self.other("add", [n]))() for n in range(4, 6)]
        self.chorded = chord([self.told(n) for n in range(6, 9)], self.other("total"))()

    def told(self, *changes):
        return self.merging.app.signature("told", ("HH", list(changes)), affinity="merging", merge_key="HH")

    def other(self, name, *args):
        return self.merging.app.signature(name, args, affinity="others")

    def run(self, *death, server):
        """Run the calls, let *server* die while the ends are reported, and restart it."""
        dies = json.dumps([*death, server.pid])
        worker = self.merging.start(app=APP, RESULT_URL=self.backend.url, DIES=dies)
        self.merging.go()
        wait_until(lambda: not server.is_running, SOON_S, worker.log())
        time.sleep(OUTAGE_S)
        server.start()


@pytest.fixture
def calls(servers, whose, tmp_path):
    broker, backend = servers["broker"], servers["broker" if whose == "both" else "results"]
    with (
        redis.Redis.from_url(broker.url) as client,
        Celery("far", broker=broker.url, backend=backend.url, set_as_current=False) as far,
    ):
        far.conf.broker_transport = "celery_affinity:Transport"
        yield Calls(Merging(far, broker, client, tmp_path / "ledger"), backend)


@pytest.mark.parametrize(("whose", "place", "number", "is_done"), DEATHS)
def test_server_death_while_reporting_loses_and_repeats_no_report(servers, calls, whose, place, number, is_done):
    calls.run(place, number, is_done, server=servers["results" if whose == "results" else "broker"])
    whole = list(range(9))
    assert [each.get(timeout=SOON_S) for each in [calls.first, *calls.linked]] == [whole] * 4
    assert [each.get(timeout=SOON_S) for each in calls.chained] == [[*whole, 4], [*whole, 5]]
    assert calls.chorded.get(timeout=SOON_S) == [whole] * 3
    calls.merging.leaves_nothing()
    links = [[n] for n in range(1, 6)] + [[n, n] for n in range(1, 4)]
    assert Counter(str(link) for _, link in calls.merging.runs("add")) == {str(link): 1 for link in links}
    assert len(calls.merging.runs("total")) == 1
    assert len(calls.merging.runs("told")) <= 2


@pytest.mark.slow
@pytest.mark.timeout(LOST_S + 60)
@pytest.mark.parametrize("whose", ["both", "results"])
def test_unstorable_result_is_lost_for_each_caller(servers, calls, whose):
    """The run's own call is left out: like any Celery call, it gets no result."""
    calls.run("store_result", 1, False, server=servers["results" if whose == "results" else "broker"])
    for each in [*calls.linked, *calls.chained]:
        with pytest.raises(ResultLostError):
            each.get(timeout=LOST_S)
    wait_until(calls.chorded.ready, SOON_S, "its body fails")
    assert isinstance(calls.chorded.result, ChordError)
    calls.merging.leaves_nothing()
    assert not calls.merging.runs("add")
    assert len(calls.merging.runs("told")) == 1
