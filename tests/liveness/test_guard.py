"""A worker's guard reports a death immediately, and reports nothing else as a death."""

import os
import signal
import time

import psutil
import pytest
import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.liveness.pulse import STALLED_AFTER_S
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.fleet import in_time
from ..support.processes import session_of, start_worker, wait_until
from ..support.worker_processes import guard_of, none_runs, pool_of, runs

#: Max seconds until a guard reports a death: a tenth of the default worker timeout.
AT_ONCE_S = 3


# -- not a death


@pytest.mark.parametrize(
    ("pool", "task"),
    in_time(
        ("gevent", "hold_the_interpreter"),
        ("prefork", "hold_the_interpreter"),
        ("threads", "hold_the_interpreter"),
        ("solo", "hold_the_interpreter"),
        ("gevent", "compute"),
        ("eventlet", "compute"),
    ),
)
def test_guarded_worker_stays_alive_without_heartbeats_for_two_timeouts(fleet, pool, task):
    timeout_s = 2
    fleet.start("watcher", "index", pool="solo", timeout_s=timeout_s, heartbeat_s=0.5)
    mute = fleet.start("mute", "pdf", pool=pool, timeout_s=timeout_s, heartbeat_s=0.5)
    fleet.tasks[task].delay("held", 2 * timeout_s + 2).get(timeout=20)
    wait_until(fleet.all_slots_are_free, 10, "the server has its end, and its slot is free")
    fleet.tasks["pdf"].delay("next").get(timeout=10)
    assert fleet.ledger.starts() == {"held": 1, "next": 1}
    assert "taken" not in mute.log()


def test_unguarded_worker_looks_dead_when_task_holds_interpreter(fleet):
    fleet.start("watcher", "index", pool="solo", timeout_s=2, heartbeat_s=0.5)
    mute = fleet.start("mute", "pdf", pool="threads", timeout_s=2, heartbeat_s=0.5, GUARD="0")
    assert not psutil.Process(mute.pid).children()
    fleet.tasks["hold_the_interpreter"].delay("held", 6)
    wait_until(lambda: fleet.ledger.starts()["held"] == 2, 15, "it runs again")


def test_suspended_worker_is_dead_because_its_guard_sends_nothing(fleet):
    suspended = fleet.start("suspended", "pdf", pool="threads", timeout_s=2, heartbeat_s=0.5)
    fleet.tasks["late"].delay("job", 30)
    wait_until(lambda: fleet.ledger.starts()["job"], 10, "it runs")
    fleet.start("other", "pdf", pool="solo", timeout_s=2, heartbeat_s=0.5)
    suspended.signal(signal.SIGSTOP)
    wait_until(lambda: fleet.ledger.starts()["job"] == 2, 10, "it runs elsewhere")
    guard_of(suspended)
    suspended.signal(signal.SIGCONT)
    wait_until(lambda: "suspended" in fleet.names(), 10, "it is back")


# -- a death


@pytest.mark.parametrize(
    ("pool", "survive"), in_time(("prefork", "0"), ("prefork", "1"), ("threads", "0"), ("solo", "0"))
)
def test_killed_workers_jobs_are_reclaimed_after_its_children_end(fleet, pool, survive):
    worker = fleet.start("killed", "pdf", pool=pool, concurrency=2, CHILDREN_SURVIVE=survive)
    jobs = [f"job-{number}" for number in range(1 if pool == "solo" else 2)]
    for job in jobs:
        fleet.tasks["late"].delay(job, 60)
    wait_until(lambda: len(fleet.ledger.starts()) == len(jobs), 10, "they run")
    guard, children = guard_of(worker), pool_of(worker)
    assert len(children) == (2 if pool == "prefork" else 0)
    worker.kill()
    wait_until(lambda: sum(each.pending for each in fleet.report.status().types) == len(jobs), AT_ONCE_S, worker.log())
    assert none_runs(children)(), "they ended before their jobs were pending again"
    assert fleet.names() == set()
    wait_until(none_runs([guard]), AT_ONCE_S, "the guard ends as well")
    fleet.start("next", "pdf", pool="solo")
    wait_until(lambda: set(fleet.ledger.ends()) == set(jobs), 10, "they run again")
    assert set(fleet.ledger.starts().values()) == {2}


def test_no_pool_process_outlives_a_worker_killed_during_startup(valkey):
    worker = start_worker("tests.support.apps.orphans", valkey.url, (), concurrency=2)
    assert worker.wait(30) == -signal.SIGKILL
    wait_until(lambda: not session_of(worker.pid), 20, "its session has no process")


def test_newly_replaced_child_ends_with_its_killed_worker(fleet):
    worker = start_worker(
        APP,
        fleet.url,
        ["pdf"],
        name="killed",
        concurrency=2,
        extra=["--max-tasks-per-child", "1"],
        env={"LEDGER": str(fleet.ledger.path), "CHILDREN_SURVIVE": "1"},
    )
    wait_until(lambda: "killed" in fleet.names(), 30, worker.log())
    guard, first = guard_of(worker), pool_of(worker)
    fleet.tasks["pdf"].delay("short").get(timeout=10)
    wait_until(lambda: set(pool_of(worker)) - set(first), 10, "a child is replaced")
    children = pool_of(worker)
    worker.kill()
    wait_until(lambda: not fleet.names(), AT_ONCE_S, worker.log())
    wait_until(none_runs([guard, *children]), AT_ONCE_S, "its guard and children end")


def test_early_acked_job_of_killed_worker_is_lost_immediately(fleet):
    worker = fleet.start("killed", "pdf", pool="threads")
    lost = fleet.tasks["early"].delay("early", 60)
    wait_until(lambda: fleet.acked() == 1, 10, "it is acked")
    worker.kill()
    wait_until(fleet.dead, AT_ONCE_S, worker.log())
    assert [(each.task_id, each.reason) for each in fleet.dead()] == [(lost.id, "lost")]


def test_daemon_started_by_a_task_survives_the_worker(fleet):
    worker = fleet.start("killed", "pdf", pool="prefork")
    fleet.tasks["send_off"].delay("daemon", 60)
    wait_until(lambda: fleet.ledger.starts()["daemon"], 10, "it runs")
    (entry,) = [entry for entry in fleet.ledger.entries() if entry.job == "daemon"]
    daemon = psutil.Process(entry.pid)
    worker.kill()
    wait_until(lambda: not fleet.names(), AT_ONCE_S, worker.log())
    assert runs(daemon)
    daemon.kill()


# -- the guard process


def test_worker_replaces_a_dead_guard(fleet):
    worker = fleet.start("worker", "pdf", pool="solo", heartbeat_s=0.5)
    first = guard_of(worker)
    first.kill()
    worker.wait_for("The guard ended with code -9: starting another", 10)
    assert guard_of(worker) != first
    fleet.tasks["late"].delay("job", 60)
    wait_until(lambda: fleet.ledger.starts()["job"], 10, "it runs")
    wait_until(lambda: guard_of(worker).net_connections(), 10, "it is on duty")
    worker.kill()
    wait_until(lambda: not fleet.names(), AT_ONCE_S, worker.log())


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_guard_ends_when_its_worker_stops_normally(fleet, pool):
    worker = fleet.start("worker", "pdf", pool=pool)
    worker.wait_ready(10)
    guard = guard_of(worker)
    worker.term()
    assert worker.wait(20) == 0
    assert not runs(guard)
    assert "died" not in worker.log()


def test_guard_ignores_signals_until_its_worker_ends(fleet):
    worker = fleet.start("worker", "pdf", pool="threads")
    worker.wait_ready(10)
    fleet.tasks["late"].delay("job", 3)
    wait_until(lambda: fleet.ledger.starts()["job"], 10, "it runs")
    guard = guard_of(worker)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        guard.send_signal(number)  # a service manager signals every process of a service
    worker.term()
    wait_until(lambda: fleet.ledger.ends()["job"], 10, "it ends")
    assert worker.wait(20) == 0
    assert "The guard ended" not in worker.log()


def test_guard_uses_little_memory_and_cpu(fleet):
    guard = guard_of(fleet.start("worker", "pdf", pool="solo", heartbeat_s=0.5))
    wait_until(lambda: guard.memory_info().rss > 8e6, 5, "it has started")
    heartbeats = Keys().key("heartbeats")
    seen = fleet.redis.zrange(heartbeats, 0, 0, withscores=True)
    wait_until(lambda: fleet.redis.zrange(heartbeats, 0, 0, withscores=True) != seen, 5, "a heartbeat")
    used = guard.cpu_times()
    assert guard.memory_info().rss < 30e6
    assert used.user + used.system < 1


def test_guard_ends_after_its_worker_when_server_hangs(tmp_path, load_app):
    with EmbeddedServer() as server:
        env = {"LEDGER": str(tmp_path / "ledger"), "WORKER_TIMEOUT": "2", "HEARTBEAT_INTERVAL": "0.5"}
        worker = start_worker(APP, server.url, ["pdf"], pool="prefork", env=env)
        worker.wait_ready(30)
        guard, children = guard_of(worker), pool_of(worker)
        os.kill(server.pid, signal.SIGSTOP)  # a stopped server accepts connections, and sends nothing
        worker.kill()
        wait_until(none_runs([guard, *children]), AT_ONCE_S, "all ended")
        os.kill(server.pid, signal.SIGCONT)


def test_guards_command_line_contains_no_password(tmp_path):
    with EmbeddedServer(password="swordfish") as server:
        env = {"LEDGER": str(tmp_path / "ledger")}
        worker = start_worker(APP, server.url, ["pdf"], pool="solo", env=env)
        worker.wait_ready(30)
        assert "swordfish" not in " ".join(guard_of(worker).cmdline())
        worker.kill()
        client = redis.Redis.from_url(server.url)
        wait_until(lambda: not client.zcard(Keys().key("heartbeats")), AT_ONCE_S, worker.log())


# -- a stalled event loop


def test_stalled_loops_unread_jobs_run_elsewhere_within_5_s(fleet):
    fleet.start("blocked", "pdf", pool="prefork", concurrency=4)
    fleet.start("versatile", "pdf", "excel", pool="threads", concurrency=4)
    fleet.app.control.broadcast("block", arguments={"seconds": 10}, destination=[fleet.report.status().workers[0].name])
    wait_until(lambda: fleet.ledger.starts()["block"], 10, "the loop stalls")
    for number in range(4):
        fleet.tasks["late"].delay(f"job-{number}")
    inbox = Keys().key("inbox", fleet.report.status().workers[0].id)
    assert fleet.redis.llen(inbox) >= 3, "one may be in its socket"
    wait_until(lambda: len(fleet.ledger.ends()) >= 3, 5, "they run elsewhere")
    assert fleet.report.status().workers[0].free == 0
    wait_until(lambda: fleet.ledger.ends()["block"], 15, "it runs again")
    wait_until(lambda: len(fleet.ledger.ends()) == 5, 5, "the job that it had read has run as well")
    wait_until(fleet.all_slots_are_free, 10, "it takes jobs again")
    assert fleet.ledger.starts() == {"block": 1, **{f"job-{number}": 1 for number in range(4)}}


def test_solo_worker_starts_next_job_immediately_after_a_long_one(fleet):
    fleet.start("solo", "pdf", pool="solo")
    results = [fleet.tasks["late"].delay(f"job-{number}", STALLED_AFTER_S + 0.5) for number in range(3)]
    for result in results:
        result.get(timeout=20)
    entries = sorted(fleet.ledger.entries(), key=lambda entry: entry.time_s)
    assert [entry.event for entry in entries] == ["start", "end"] * 3
    for ended, started in zip(entries[1::2], entries[2::2], strict=False):
        assert started.time_s - ended.time_s < 2, "less than until the next heartbeat"


@pytest.mark.parametrize("pool", in_time("gevent", "prefork", "threads", "solo", "eventlet"))
def test_idle_loop_is_not_reported_as_stalled(fleet, pool):
    worker = fleet.start("idle", "pdf", pool=pool)
    worker.wait_ready(30)  # it joins before its loop runs
    (status,) = fleet.report.status().workers
    calm_since = last = time.monotonic()
    while last - calm_since < 3 * STALLED_AFTER_S:
        time.sleep(0.1)
        stalled = fleet.redis.hexists(Keys().key("worker", status.id), "stalled")
        now = time.monotonic()
        if now - last > 0.5:  # the machine was stalled, and with it all loops
            calm_since = now
        assert not stalled or now - calm_since < STALLED_AFTER_S, worker.log()
        last = now
