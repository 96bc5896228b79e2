"""A worker that resumes after its timeout starts no job that others have claimed, and stops such jobs if possible."""

import signal

import pytest

from ..support.fleet import in_time
from ..support.processes import wait_until
from ..support.worker_processes import pool_of

TIMEOUT_S = 2


def start(fleet, name, pool):
    return fleet.start(name, "pdf", pool=pool, timeout_s=TIMEOUT_S, heartbeat_s=0.5)


@pytest.mark.parametrize("pool", in_time("prefork", "threads", "gevent"))
@pytest.mark.parametrize("task", ["early", "late"])
def test_job_in_a_suspended_workers_socket_runs_once_elsewhere(fleet, pool, task):
    zombie = start(fleet, "zombie", pool)
    fleet.tasks["pdf"].delay("warm-up").get(timeout=10)
    wait_until(fleet.all_slots_are_free, 10, "it is idle")
    zombie.signal(signal.SIGSTOP)
    result = fleet.tasks[task].delay("job")
    healthy = start(fleet, "healthy", "solo")
    assert result.get(timeout=15) == "job"
    zombie.signal(signal.SIGCONT)
    wait_until(lambda: fleet.names() == {"zombie", "healthy"}, 10, "it is back")
    healthy.term()
    wait_until(lambda: fleet.names() == {"zombie"}, 10, "only the zombie is left")
    assert fleet.tasks[task].delay("next").get(timeout=10) == "next", zombie.log()
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")
    assert fleet.ledger.starts() == {"warm-up": 1, "job": 1, "next": 1}


@pytest.mark.test
@pytest.mark.parametrize("pool", in_time("prefork", "gevent"))
def test_repeated_task_is_stopped_on_the_resumed_worker(fleet, pool):
    zombie = start(fleet, "zombie", pool)
    result = fleet.tasks["late"].delay("job", 30)
    wait_until(lambda: fleet.ledger.starts()["job"], 10, "it runs")
    children = {each.pid for each in pool_of(zombie)} if pool == "prefork" else set()
    zombie.signal(signal.SIGSTOP)
    start(fleet, "healthy", "solo")
    wait_until(lambda: fleet.ledger.starts()["job"] == 2, 10, "it runs elsewhere")
    zombie.signal(signal.SIGCONT)
    wait_until(lambda: "is stopped" in zombie.log(), 10, "it is stopped")
    assert result.get(timeout=15) == "job"
    assert fleet.ledger.ends() == {"job": 1}
    wait_until(lambda: len(fleet.names()) == 2 and fleet.all_slots_are_free(), 10, "no slot is lost")
    assert fleet.tasks["late"].delay("next").get(timeout=10) == "next"
    assert fleet.ledger.starts() == {"job": 2, "next": 1}
    if children:
        assert not children & {each.pid for each in pool_of(zombie)}, "its pool process was ended"


def test_early_acked_task_is_not_stopped(fleet):
    zombie = start(fleet, "zombie", "prefork")
    fleet.tasks["early"].delay("job", 15)
    wait_until(lambda: fleet.acked() == 1, 10, "it runs, and is acked")
    zombie.signal(signal.SIGSTOP)
    start(fleet, "healthy", "solo")
    wait_until(lambda: [letter.reason for letter in fleet.dead()] == ["lost"], 10, "it is reported lost")
    zombie.signal(signal.SIGCONT)
    wait_until(lambda: "no longer this worker's" in zombie.log(), 10, "the worker learns that it was reported dead")
    wait_until(lambda: fleet.ledger.ends()["job"], 25, "it runs to its end")
    assert fleet.ledger.starts() == {"job": 1}
