"""A cold shutdown affects a worker's jobs like its death: late-acked jobs run again, other callers get an error."""

import json
import signal

import pytest
from billiard.exceptions import WorkerLostError

from celery_affinity import explain

from ..support.apps import APP
from ..support.fleet import POOLS
from ..support.processes import start_worker, wait_until, wait_until_it_listens
from ..support.worker_processes import pool_of

#: Run time in seconds of tasks that finish before a shutdown, and of tasks that the shutdown ends.
SHORT_S, LONG_S = 4, 600

#: Pools, and the seconds that a soft shutdown waits. 0 means that the shutdown is cold. Celery cannot end a task of a
#: threads pool, and cannot always wait where a signal reaches a green pool. Such tasks run to their end.
FINISH = [("threads", 0), ("threads", 1)]
EITHER = [("gevent", 1), ("eventlet", 1)]
CUT_SHORT = [(pool, soft_s) for pool in POOLS for soft_s in (0, 1) if (pool, soft_s) not in FINISH + EITHER]


def shut_down(fleet, pool, soft_s, *names, seconds):
    """Start a worker that runs tasks of these *names*, and end it by SIGQUIT while they run. Return their results."""
    conf = {"worker_soft_shutdown_timeout": soft_s, "task_track_started": True}
    env = {"LEDGER": str(fleet.ledger.path), "CONF": json.dumps(conf)}
    worker = start_worker(APP, fleet.url, ["pdf"], pool=pool, concurrency=len(names), name="leaving", env=env)
    wait_until(lambda: "leaving" in fleet.names(), 30, worker.log())
    results = [fleet.tasks[name].delay(name, seconds) for name in names]
    wait_until(lambda: fleet.ledger.starts().total() == len(names), 10, "all run")
    wait_until(lambda: fleet.acked() == names.count("early"), 10, "the early acks are there")
    worker.signal(signal.SIGQUIT)
    worker.wait(40)
    assert not fleet.names(), worker.log()
    fleet.start("next", "pdf", pool="threads")
    return results


@pytest.mark.parametrize(("pool", "soft_s"), CUT_SHORT)
def test_late_acked_job_runs_again_after_a_cold_shutdown(fleet, pool, soft_s):
    (late,) = shut_down(fleet, pool, soft_s, "late", seconds=LONG_S)
    assert late.get(timeout=20) == "late"
    assert fleet.ledger.starts()["late"] == 2
    wait_until(fleet.all_slots_are_free, 10, "it has ended")
    assert explain(fleet.app, late.id).state == "done"


@pytest.mark.whole
@pytest.mark.parametrize(("pool", "soft_s"), CUT_SHORT)
def test_cold_shutdown_loses_early_acked_jobs_and_reports_them(fleet, pool, soft_s):
    (early,) = shut_down(fleet, pool, soft_s, "early", seconds=LONG_S)
    with pytest.raises(WorkerLostError, match="died, and the task had been acknowledged"):
        early.get(timeout=20)
    assert [(letter.task_id, letter.reason) for letter in fleet.dead()] == [(early.id, "lost")]
    assert fleet.ledger.starts()["early"] == 1


@pytest.mark.whole
@pytest.mark.parametrize(("pool", "soft_s"), FINISH)
def test_worker_waits_for_tasks_that_it_cannot_end(fleet, pool, soft_s):
    results = shut_down(fleet, pool, soft_s, "late", "early", seconds=SHORT_S)
    assert [each.get(timeout=5) for each in results] == ["late", "early"]
    assert fleet.ledger.starts() == {"late": 1, "early": 1}
    assert fleet.dead() == []


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_cold_shutdown_ends_all_jobs_of_a_worker(fleet, pool):
    *late, early = shut_down(fleet, pool, 0, "late", "late", "early", seconds=LONG_S)
    assert [each.get(timeout=20) for each in late] == ["late", "late"]
    with pytest.raises(WorkerLostError):
        early.get(timeout=20)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["late", "early"])
def test_cold_shutdown_ends_a_task_that_begins_during_it(fleet, name):
    worker = fleet.start("leaving", "pdf")
    wait_until_it_listens(fleet.app, "leaving")
    (process,) = pool_of(worker)
    process.suspend()  # the signal must arrive before the worker learns of the task's start
    result = fleet.tasks[name].delay(name, LONG_S)
    worker.wait_for("received", 10)
    for _ in range(2):  # two iterations of the loop, which writes the job to the process
        assert fleet.app.control.ping(timeout=10, limit=1)
    worker.signal(signal.SIGQUIT)
    worker.wait_for("Hitting Ctrl+C again", 10)
    process.resume()
    worker.wait(20)
    fleet.start("next", "pdf", pool="threads")
    if name == "late":
        assert result.get(timeout=20) == "late"
    else:
        with pytest.raises(WorkerLostError):
            result.get(timeout=20)


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "soft_s"), EITHER)
def test_soft_shutdown_of_a_green_pool_ends_every_job(fleet, pool, soft_s):
    late, early = shut_down(fleet, pool, soft_s, "late", "early", seconds=SHORT_S)
    assert late.get(timeout=20) == "late"
    assert fleet.ledger.ends()["late"] == 1
    if fleet.ledger.ends()["early"]:
        assert early.get(timeout=5) == "early"
    else:
        with pytest.raises(WorkerLostError):
            early.get(timeout=20)
