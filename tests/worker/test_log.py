"""A worker's log lines on the scheduler: the joined types, and the fate of the jobs when the worker leaves."""

import json
import re
import signal
from unittest.mock import Mock

import pytest
import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.server_info import product_of_info
from celery_affinity.schema.keys import Keys
from celery_affinity.worker import cohort_member
from celery_affinity.worker.bootstep import AffinityBootstep

from ..support.apps import APP
from ..support.fleet import POOLS
from ..support.processes import start_worker, wait_until

PASSWORD = "secret-of-the-broker"


def said(worker):
    """Return this package's lines in the worker's log, without times."""
    return re.findall(r"INFO/\w+\] (celery_affinity.*)", worker.log())


def test_each_pools_worker_logs_types_and_returned_jobs(fleet):
    workers = {
        pool: start_worker(
            APP, fleet.url, [f"{pool}-b", f"{pool}-a"], pool=pool, concurrency=2, name=pool, env={"LEDGER": "/dev/null"}
        )
        for pool in POOLS
    }
    version = fleet.redis.info("server")["valkey_version"]
    for pool, worker in workers.items():
        worker.wait_ready(60)
        (line,) = said(worker)
        number = "1 slot" if pool == "solo" else "2 slots"
        assert re.fullmatch(
            rf"celery_affinity [\w.]+: serves {pool}-b, {pool}-a with {number}; guarded by process \d+; "
            rf"namespace 'affinity' on Valkey {re.escape(version)} at {re.escape(fleet.url)}",
            line,
        )
    for worker in workers.values():
        worker.term()
    for worker in workers.values():
        assert worker.wait(30) == 0
        assert said(worker)[1:] == ["celery_affinity: left the fleet; 0 jobs returned to the queue"]


@pytest.mark.parametrize("how", ["warm", "cold"])
def test_leaving_worker_logs_the_number_of_returned_jobs(fleet, how):
    conf = json.dumps({"affinity_lookahead": 3})
    worker = fleet.start("leaving", "pdf", pool="threads" if how == "warm" else "prefork", concurrency=2, CONF=conf)
    for number in range(4):
        fleet.tasks["late"].delay(number, 3 if how == "warm" else 60)
    wait_until(lambda: len(fleet.ledger.starts()) == 2, 20, "two run")
    held = sum(each.claimed or 0 for each in fleet.report.status().types)
    worker.signal(signal.SIGTERM if how == "warm" else signal.SIGQUIT)
    worker.wait(30)
    given_back = held - 2 if how == "warm" else held
    jobs = "1 job" if given_back == 1 else f"{given_back} jobs"
    assert said(worker)[-1] == f"celery_affinity: left the fleet; {jobs} returned to the queue"
    assert sum(each.pending for each in fleet.report.status().types) == (2 if how == "warm" else 4)


def test_worker_logs_how_it_rejoined_but_no_password(tmp_path):
    with EmbeddedServer(directory=tmp_path, password=PASSWORD) as server:
        env = {"LEDGER": str(tmp_path / "ledger"), "GUARD": "0", "CONF": '{"affinity_queues": ["pdf*"]}'}
        with redis.Redis.from_url(server.url) as client:
            worker = start_worker(APP, server.url, ["pdf", "mail"], pool="threads", name="worker", env=env)
            worker.wait_ready(30)
            client.client_kill_filter(_type="normal", skipme=True)
            worker.wait_for("joined again", 20)
            status = Report(Reader(client, Keys())).status
            wait_until(lambda: [each.free for each in status().workers] == [1], 20, "it is back")
            client.flushall()
            client.set(Keys().key("fence"), 1000)
            client.client_kill_filter(_type="normal", skipme=True)
            worker.wait_for("as a new member", 20)
            worker.term()
            worker.wait(20)
        first, *again, last = said(worker)
        assert "serves pdf with 1 slot; no guard: declared dead after 30 s of silence; namespace" in first
        assert "on Valkey 9" in first
        assert first.endswith(f"at {server.url.replace(PASSWORD, '**')}"), first
        assert again[0] == "celery_affinity: joined again; still holds 0 jobs"
        assert "celery_affinity: joined again, as a new member" in again
        assert last == "celery_affinity: left the fleet; 0 jobs returned to the queue"
        assert PASSWORD not in worker.log()


def test_worker_that_leaves_while_reconnecting_counts_returned_jobs(caplog):
    caplog.set_level("INFO")
    step = AffinityBootstep.__new__(AffinityBootstep)
    step._returned_before, step.members = None, Mock(returned=101)

    def leave():
        step.members.returned += 20
        return True

    step.members.leave = leave
    step.shutdown(Mock())
    assert "left the fleet; 20 jobs returned to the queue" in caplog.text


@pytest.mark.parametrize(
    ("info", "shown"),
    [
        ({"redis_version": "7.0.15"}, "Redis 7.0.15"),
        ({"redis_version": "7.2.4", "valkey_version": "9.0.1", "server_name": "valkey"}, "Valkey 9.0.1"),
        ({}, "a server that does not tell its version"),
        ({"redis_version": "1\nERROR all is lost"}, "a server that does not tell its version"),
    ],
)
def test_server_product_is_named_by_its_info(info, shown):
    assert product_of_info(info) == shown


def test_worker_of_many_types_logs_some_of_them():
    given = {"guard": None, "timeout_s": 30.0, "prefix": "", "server": "Redis 7", "uri": "redis://host:6379/0"}
    many = cohort_member.line_on_joining(types=[f"type-{n}" for n in range(1000)], slots=2000, namespace="a", **given)
    assert (
        "serves type-0, type-1, type-2, type-3, type-4, type-5, type-6, type-7, ... (1,000 in all) with 2,000" in many
    )
    given["prefix"] = "mine:"
    none = cohort_member.line_on_joining(types=[], slots=1, namespace="a", **given)
    assert (
        "serves no scheduled queue with 1 slot; no guard: declared dead after 30 s of silence; namespace 'a' behind"
        in none
    )
    assert "behind prefix 'mine:' on Redis 7 at redis://host:6379/0" in none


def test_worker_joins_a_server_that_hides_its_version(valkey, redis_client, fleet):
    redis_client.execute_command("ACL", "SETUSER", "worker", "on", ">pass", "~*", "&*", "+@all", "-info")
    try:
        url = valkey.url.replace("://", "://worker:pass@")
        worker = start_worker(APP, url, ["pdf"], pool="solo", env={"LEDGER": str(fleet.ledger.path)})
        worker.wait_ready(30)
        (line,) = said(worker)
        assert "on a server that does not tell its version at redis://worker:**@" in line
    finally:
        redis_client.execute_command("ACL", "DELUSER", "worker")
