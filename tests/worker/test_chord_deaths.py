"""The process that counts the last part of a chord dies after Celery claimed the chord: the body still runs once."""

import json

import pytest
from celery import chord

from ..support.merging import SOON_S, Merging
from ..support.processes import wait_until

pytestmark = pytest.mark.whole

APP = "tests.support.apps.merging_dies"

#: Maximum seconds until the body is published. Celery's claim of the chord lasts 21 s, and another 40 s pass until a
#: lost job is reported for the third time.
CLAIMED_S = 80

#: What dies in which pool: a "process" of the pool, or the "worker" with its processes.
WHO = [
    ("prefork", "worker"),
    ("prefork", "process"),
    ("threads", "process"),
    *(pytest.param(pool, "process", marks=pytest.mark.slow) for pool in ("solo", "gevent", "eventlet")),
]


@pytest.fixture
def fleet(load_app, valkey, redis_client, tmp_path):
    return Merging(load_app(APP), valkey, redis_client, tmp_path / "ledger")


def chord_of(fleet, part):
    header = [fleet.task(part).s(number) for number in range(3)]
    return chord(header, fleet.task("total").s().set(affinity="others"))


def start(fleet, pool, who, *, is_done):
    """Start a worker for the waiting jobs. *who* dies before or just after the first chord's body is published."""
    fleet.start("threads", types=["others"])  # this worker does not die
    worker = fleet.start(pool, app=APP, DIES=json.dumps(["body", 1, is_done, who]))
    fleet.go()
    wait_until(fleet.ledger.with_name("ledger.died").exists, SOON_S, "it dies")
    if who == "worker" or pool != "prefork":
        wait_until(lambda: not worker.is_running, SOON_S, worker.log())
        fleet.start(app=APP)


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize(("pool", "who"), WHO)
def test_late_acked_chord_runs_its_body_once_despite_deaths(fleet, pool, who, is_done):
    whole = chord_of(fleet, "late_part")()
    start(fleet, pool, who, is_done=is_done)
    assert whole.get(timeout=CLAIMED_S) == [0, 1, 2]
    for each in [*whole.parent.results, whole]:
        wait_until(lambda each=each: not fleet.scheduler.reader.has_unended_job(each.id), CLAIMED_S, "all have ended")
    assert fleet.runs("total") == [[[0, 1, 2]]]


@pytest.mark.parametrize("is_done", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_early_acked_chord_runs_its_body_once_without_reruns(fleet, is_done):
    whole = chord_of(fleet, "early_part")()
    start(fleet, "threads", "process", is_done=is_done)
    assert whole.get(timeout=CLAIMED_S) == [0, 1, 2]
    wait_until(lambda: not fleet.scheduler.reader.has_unreported_ends(), CLAIMED_S, "all ends are told")
    assert fleet.runs("total") == [[[0, 1, 2]]]
    assert sorted(fleet.runs("early_part")) == [[0], [1], [2]]


def test_chord_applied_twice_runs_its_body_twice(fleet):
    frozen = chord_of(fleet, "late_part")
    frozen.freeze()
    fleet.start("threads", types=["others", "merging"], app=APP)
    for times in (1, 2):
        fleet.scheduler.pause("type:merging")  # Celery forgets the first body after it has published the parts
        whole = frozen.apply_async()
        fleet.go()
        wait_until(lambda times=times: len(fleet.runs("total")) == times, SOON_S, "its body runs")
        # Celery publishes the body before it deletes the counts of the parts, and would delete the counts of the second
        # call.
        for each in [*whole.parent.results, whole]:
            wait_until(lambda each=each: not fleet.scheduler.reader.has_unended_job(each.id), SOON_S, "all have ended")
