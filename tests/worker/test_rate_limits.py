"""Rate limits: limited jobs block no other job on their worker; no limited job is lost or out of order."""

import json
import time

import pytest

from celery_affinity.schema.keys import Keys
from celery_affinity.transport.app_api import explain

from ..support import since
from ..support.apps import APP, app_for
from ..support.fleet import in_time
from ..support.processes import start_worker, wait_until

OURS, STOCK = "celery_affinity:Transport", "redis"


def starts(fleet, prefix):
    return [each for each in fleet.ledger.entries() if each.event == "start" and each.job.startswith(prefix)]


def jobs(fleet, prefix):
    return [each.job for each in starts(fleet, prefix)]


def send(fleet, task, number, *args):
    return [fleet.tasks[task].delay(f"{task}-{each}", *args) for each in range(number)]


def named(prefix, number):
    return [f"{prefix}-{each}" for each in range(number)]


def worker_of(fleet, name):
    return next(each for each in fleet.report.status().workers if each.name.startswith(name))


@pytest.mark.parametrize("pool", in_time("prefork", "threads", "gevent"))
def test_limited_type_lends_slots_and_keeps_its_order(fleet, pool):
    worker = fleet.start("worker", "mail", "pdf", pool=pool, concurrency=2, RATE_LIMIT="5/s")
    mails = send(fleet, "mail", 15)
    wait_until(lambda: worker_of(fleet, "worker").withdrawn == ["mail"], 5, "enough wait in the worker")
    for result in [fleet.tasks["pdf"].delay(f"pdf-{number}") for number in range(10)]:
        result.get(timeout=20)
    assert len(starts(fleet, "mail")) < 15, "they still go"
    for result in mails:
        result.get(timeout=20)
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")
    assert worker_of(fleet, "worker").withdrawn == []
    assert jobs(fleet, "mail") == named("mail", 15)
    times_s = [each.time_s for each in starts(fleet, "mail")]
    assert 14 / 5 * 0.9 < times_s[-1] - times_s[0] < 14 / 5 * 3, "at its rate, as far as the machine has time"
    assert set(fleet.ledger.starts().values()) == {1}
    assert "no longer" not in worker.log()


def wait_of_an_unlimited_job_s(fleet, transport):
    """Return the seconds that a job of another type waits for a worker with two slots and 20 limited jobs."""
    env = {"LEDGER": str(fleet.ledger.path), "TRANSPORT": transport, "RATE_LIMIT": "24/m"}
    worker = start_worker(APP, fleet.url, ["mail", "pdf"], concurrency=2, env=env)
    worker.wait_ready(30)
    with app_for(fleet.url, result_backend=fleet.url, broker_transport=transport) as producer:
        for each in range(20):
            producer.send_task(f"{APP}.mail", (f"{transport}-{each}",), queue="mail")
        at_once = since.LIMITED_AT_ONCE if transport == STOCK else 1
        wait_until(lambda: len(starts(fleet, f"{transport}-")) == at_once, 10, "they go")
        if transport == STOCK:
            wait_until(lambda: fleet.redis.hlen("unacked") == 8, 10, "it has prefetched four for each slot")
        sent_s = time.time()
        producer.send_task(f"{APP}.pdf", (f"unlimited-{transport}",), queue="pdf").get(timeout=20)
    worker.end()
    return starts(fleet, f"unlimited-{transport}")[0].time_s - sent_s


def test_unlimited_job_waits_less_than_with_stock_celery(fleet):
    stock_s = wait_of_an_unlimited_job_s(fleet, STOCK)
    fleet.redis.flushall()
    ours_s = wait_of_an_unlimited_job_s(fleet, OURS)
    print(f"an unlimited job beside 20 limited ones waits {stock_s:.3f} s with stock Celery, {ours_s:.3f} s here")
    assert ours_s < 0.5 < 1 < stock_s


def test_jobs_waiting_for_a_limit_are_returned_at_shutdown(fleet):
    worker = fleet.start("leaving", "mail", "pdf", concurrency=2, RATE_LIMIT="1/m")
    send(fleet, "mail", 5)
    running = fleet.tasks["pdf"].delay("running", 1)
    wait_until(lambda: set(fleet.ledger.starts()) == {"mail-0", "running"}, 10, "both run")
    wait_until(lambda: worker_of(fleet, "leaving").withdrawn == ["mail"], 5, "enough wait in the worker")
    worker.term()
    assert worker.wait(15) == 0
    assert running.get(timeout=1) == "running"
    (mail, _) = (
        fleet.report.status().types if len(fleet.report.status().types) == 2 else (*fleet.report.status().types, 0)
    )
    assert mail.pending == 4
    fleet.start("next", "mail", pool="solo")
    wait_until(lambda: jobs(fleet, "mail") == named("mail", 5), 10, "all ran, in order")


def test_job_without_a_slot_for_its_token_runs_elsewhere(fleet):
    worker = fleet.start("worker", "mail", "pdf", pool="prefork", concurrency=2, RATE_LIMIT="1/s")
    send(fleet, "mail", 3)
    send(fleet, "pdf", 2, 60)
    wait_until(lambda: len(starts(fleet, "pdf")) == 2, 5, "they got the slots that were lent")
    wait_until(lambda: "returned to its queue" in worker.log(), 3, "no slot is left for the next")
    assert len(starts(fleet, "mail")) == 1
    other = fleet.start("other", "mail", pool="solo")
    wait_until(lambda: len(starts(fleet, "mail")) == 3, 5, "another runs them")
    assert {each.pid for each in starts(fleet, "mail")[1:]} == {other.pid}
    assert jobs(fleet, "mail") == named("mail", 3)


@pytest.mark.parametrize(("pool", "limit"), [("prefork", "50/s"), ("threads", "0")])
def test_new_limit_applies_to_waiting_jobs(fleet, pool, limit):
    fleet.start("worker", "mail", "pdf", pool=pool, concurrency=2, RATE_LIMIT="1/m")
    send(fleet, "mail", 8)
    wait_until(lambda: worker_of(fleet, "worker").withdrawn == ["mail"], 5, "they wait")
    assert fleet.app.control.rate_limit(f"{APP}.mail", limit, reply=True)[0].popitem()[1]["ok"]
    wait_until(lambda: len(starts(fleet, "mail")) == 8, 5, "they go")
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")
    assert sorted(jobs(fleet, "mail")) == named("mail", 8)
    assert fleet.app.control.rate_limit(f"{APP}.mail", "1/m", reply=True)[0].popitem()[1]["ok"]
    send(fleet, "mail", 8)
    wait_until(lambda: worker_of(fleet, "worker").withdrawn == ["mail"], 5, "they wait again")
    assert fleet.tasks["pdf"].delay("pdf").get(timeout=1) == "pdf"


def test_type_is_served_while_its_worker_has_withdrawn(fleet):
    fleet.start("worker", "mail", "pdf", pool="threads", concurrency=2, RATE_LIMIT="1/m")
    send(fleet, "mail", 6)
    wait_until(lambda: worker_of(fleet, "worker").withdrawn == ["mail"], 5, "it withdraws")
    last = fleet.tasks["mail"].delay("last")
    status = fleet.report.status()
    assert "unserved" not in status.counters
    assert [(each.type, each.slots, each.unserved) for each in status.types] == [("mail", 2, False), ("pdf", 2, False)]
    found = explain(fleet.app, last.id)
    assert found.waiting.blocked_by[0].why.startswith("a rate limit, or a full buffer ")


def test_lost_connection_returns_waiting_jobs_and_repeats_none(fleet):
    worker = fleet.start("worker", "mail", "pdf", pool="prefork", concurrency=2, RATE_LIMIT="2/s")
    send(fleet, "mail", 6)
    wait_until(lambda: worker_of(fleet, "worker").withdrawn == ["mail"], 5, "they wait")
    fleet.redis.client_kill_filter(_type="normal", skipme=True)
    wait_until(lambda: "Connection to broker lost" in worker.log(), 10, "it notices")
    wait_until(lambda: len(starts(fleet, "mail")) == 6, 15, "all ran")
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")
    assert sorted(jobs(fleet, "mail")) == named("mail", 6)


def test_worker_without_other_types_keeps_its_limited_type(fleet):
    fleet.start("worker", "mail", pool="threads", concurrency=2, RATE_LIMIT="1/m")
    send(fleet, "mail", 6)
    claims = Keys().key("claims", worker_of(fleet, "worker").id)
    wait_until(
        lambda: len(starts(fleet, "mail")) == 1 and fleet.redis.hlen(claims) == 3, 20, "one slot is lent, not both"
    )
    assert fleet.free_slots() == 0
    assert worker_of(fleet, "worker").withdrawn == []


# -- with look-ahead


def _ahead(fleet, name, *queues, pool="threads", **options):
    conf = json.dumps({"affinity_lookahead": 8})
    return fleet.start(name, *queues, pool=pool, concurrency=2, RATE_LIMIT="1/m", CONF=conf, **options)


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_lookahead_uses_slots_lent_by_limited_jobs(fleet, pool):
    _ahead(fleet, "worker", "mail", "pdf", pool=pool)
    send(fleet, "mail", 5)
    wait_until(lambda: jobs(fleet, "mail"), 10, "the first one runs")
    sent_s = time.time()
    for result in send(fleet, "pdf", 3):
        result.get(timeout=5)
    print(f"with five limited jobs before them, three others ran within {time.time() - sent_s:.3f} s")
    assert jobs(fleet, "mail") == ["mail-0"]
    wait_until(fleet.all_slots_are_free, 10, "no slot is lost")


def test_lookahead_leaves_limited_jobs_to_other_workers(fleet):
    _ahead(fleet, "holder", "mail")
    send(fleet, "mail", 9)
    wait_until(lambda: jobs(fleet, "mail"), 10, "the first one runs")
    other = fleet.start("other", "mail", pool="solo")
    wait_until(lambda: len(jobs(fleet, "mail")) >= 6, 10, "another without a limit gets those that do not wait there")
    assert {each.pid for each in starts(fleet, "mail")[1:]} == {other.pid}
