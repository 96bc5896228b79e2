"""A process dies while it reports to the callers of a merged run: each caller gets a result, each link runs once."""

import json
from collections import Counter

import pytest
from celery import chain, chord
from celery.exceptions import TaskRevokedError, WorkerLostError

from ..support.merging import SOON_S, Merging
from ..support.processes import wait_until, wait_until_it_listens

pytestmark = pytest.mark.whole

APP = "tests.support.apps.merging_dies"

#: Maximum seconds until a caller gets its result if the process died in its chord: Celery's claim of the chord lasts 21
#: s.
CLAIMED_S = 60

#: Where the process dies: a place, the number of the call there, and whether the call is done. The first stored result
#: belongs to the run's own call, whose links Celery publishes.
PLACES = [
    ("publish", 2, False),
    ("publish", 2, True),
    ("publish", 6, True),
    ("store_result", 2, False),
    ("store_result", 3, True),
    ("on_chord_part_return", 1, False),
    ("on_chord_part_return", 2, True),
    ("on_chord_part_return", 3, True),
    *(pytest.param("body", 1, is_done, marks=pytest.mark.slow) for is_done in (False, True)),
]


@pytest.fixture
def merging(load_app, valkey, redis_client, tmp_path):
    return Merging(load_app(APP), valkey, redis_client, tmp_path / "ledger")


@pytest.mark.parametrize("who", ["process", pytest.param("worker", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("place", "number", "is_done"), PLACES)
def test_death_while_reporting_repeats_no_link(merging, place, number, is_done, who):
    told = merging.task("told")
    add, total = (merging.task(name).s().set(affinity="others") for name in ("add", "total"))
    merging.start("threads", types=["others"])  # this worker does not die
    first = told.delay("HH", [0])
    results = [told.apply_async(("HH", [n]), link=[add.clone(([n],)), add.clone(([n, n],))]) for n in range(1, 4)]
    chained = [chain(told.s("HH", [n]), add.clone(([n],)))() for n in range(4, 6)]
    chorded = chord([told.s("HH", [n]) for n in range(6, 9)], total)()
    worker = merging.start(app=APP, DIES=json.dumps([place, number, is_done, who]))
    merging.go()
    if who == "worker":
        wait_until(lambda: not worker.is_running, SOON_S, worker.log())
        merging.start(app=APP)
    whole = list(range(9))
    assert [each.get(timeout=SOON_S) for each in [first, *results]] == [whole] * 4
    assert [each.get(timeout=SOON_S) for each in chained] == [[*whole, 4], [*whole, 5]]
    assert chorded.get(timeout=CLAIMED_S) == [whole] * 3
    merging.leaves_nothing(CLAIMED_S)
    links = [[n] for n in range(1, 6)] + [[n, n] for n in range(1, 4)]
    runs = Counter(str(link) for _, link in merging.runs("add"))
    assert runs == {str(link): 1 for link in links}
    assert len(merging.runs("total")) == 1
    assert len(merging.runs("told")) <= 2
    assert merging.ledger.with_name("ledger.died").exists()


@pytest.mark.parametrize(("place", "number", "is_done"), [("store_result", 2, True), ("store_result", 4, True)])
def test_death_between_a_failure_and_its_links_skips_none(merging, place, number, is_done):
    told, failed = merging.task("told"), merging.task("failed").s().set(affinity="others")
    merging.start("threads", types=["others"])
    first = told.delay("HH", ["fail"])  # Celery publishes its links
    results = [told.apply_async(("HH", ["fail"]), link_error=failed) for _ in range(4)]
    chained = chain(told.s("HH", ["fail"]), merging.task("add").s([1]))()
    merging.start(app=APP, DIES=json.dumps([place, number, is_done, "process"]))
    merging.go()
    for each in [first, *results, chained.parent, chained]:
        with pytest.raises((ValueError, WorkerLostError)):  # Celery reports a process lost after another failure
            each.get(timeout=SOON_S)
    merging.leaves_nothing()
    wait_until(lambda: len(merging.runs("failed")) >= 4, SOON_S, "all are called")
    assert sorted(merging.runs("failed")) == sorted([each.id] for each in results)
    assert len(merging.runs("told")) == 1


def test_death_after_terminate_for_one_caller_loses_no_other(merging):
    first, *others = [merging.task("fold_late").delay("HH", [n], 60.0) for n in range(3)]
    worker = merging.start(app="tests.support.apps.merging")
    merging.go()
    wait_until(lambda: merging.runs("fold_late"), SOON_S, "it runs")
    merging.app.control.revoke(first.id, terminate=True, signal="SIGCONT")  # its process survives
    with pytest.raises(TaskRevokedError):
        first.get(timeout=SOON_S)
    wait_until_it_listens(merging.app, worker.name)  # then it has sent all earlier messages
    worker.kill()
    merging.start(app="tests.support.apps.merging")
    assert [each.get(timeout=SOON_S) for each in others] == [[1, 2]] * 2
    assert merging.runs("fold_late") == [["HH", [0, 1, 2]], ["HH", [1, 2]]]
    assert first.state == "REVOKED"
    merging.leaves_nothing()
