"""A running task is preempted for another tenant: first a flag, after the grace by force; the job is requeued silently.

These tests put the control messages into the inbox, like the server.
"""

import signal

import pytest
from celery import chord

from celery_affinity import Affinity, Tenant
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.settings.tenants import encoded_tenants

from ..support.fleet import in_time
from ..support.preempting import KEYS, Victim
from ..support.processes import start_worker, wait_until
from ..support.worker_processes import pool_of

APP = "tests.support.apps.preemption"
GRACE_MS = 300
#: A grace longer than any test.
LONG_MS = 60_000


@pytest.fixture
def tasks(valkey, load_app, redis_client):
    return {name.partition(".")[2]: task for name, task in load_app(APP).tasks.items() if name.startswith("preemption")}


@pytest.fixture
def call(tasks, redis_client):
    def call(name, *args, **options):
        result = tasks[name].apply_async(args, **options)
        return Victim(redis_client, result, is_merged=name == "together")

    return call


@pytest.fixture
def start(valkey):
    def start(pool="prefork", concurrency=1, name="victims", **env):
        extra = ["--without-mingle", "--without-gossip"]
        return start_worker(
            APP, valkey.url, ["celery"], pool=pool, concurrency=concurrency, name=name, env=env, extra=extra
        )

    return start


def check_that_it_came_back_as_it_was(before, victim):
    after = victim.row()
    for field in ("deliveries", "enqueued"):
        assert after.get(field) == before.get(field)
    assert int(after["fence"]) > int(before["fence"])


@pytest.mark.parametrize("pool", in_time("prefork", "gevent", "eventlet"))
def test_task_is_asked_to_stop_then_stopped_by_force(start, call, pool, redis_client):
    worker = start(pool)
    stubborn = call("ignores", True)
    stubborn.wait_for_run(1)
    before = stubborn.order(GRACE_MS)
    stubborn.order(LONG_MS, before)  # two messages for a claim count once
    assert stubborn.end_of_run(2) == 2
    check_that_it_came_back_as_it_was(before, stubborn)
    assert redis_client.get(f"asked:{stubborn.id}") == b"1", "it was asked first"
    assert redis_client.hget(KEYS.key("worker", before["worker"]), "stops") == b"force"
    obliging = call("counts")
    obliging.wait_for_run(1)
    before = obliging.order(LONG_MS)
    obliging.wait_for_run(2)
    check_that_it_came_back_as_it_was(before, obliging)
    assert obliging.end() == 2
    assert "Traceback" not in worker.log()


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_server_learns_stoppable_tasks_of_pools_without_force(start, call, pool, redis_client):
    worker = start(pool)
    victim = call("counts")
    victim.wait_for_run(1)
    key = KEYS.key("worker", victim.row()["worker"])
    wait_until(lambda: redis_client.hget(key, "stops") == b"preemption.counts", 10, "the server knows the task")
    before = victim.order(GRACE_MS)
    victim.wait_for_run(2)
    check_that_it_came_back_as_it_was(before, victim)
    assert victim.end() == 2
    if pool == "threads":
        stubborn = call("ignores")
        stubborn.wait_for_run(1)
        stubborn.order(0)
        worker.wait_for(f"{stubborn.id}] must stop within", 10)
        assert stubborn.end() == 1, "it goes on, and counts"
    assert "Traceback" not in worker.log()


def test_preempted_batch_and_chord_part_are_requeued_whole(start, tasks, call, redis_client):
    merged = [call("together", number) for number in range(3)]
    worker = start(concurrency=2)
    merged[0].wait_for_run(1)
    before = merged[0].order(LONG_MS)
    merged[0].wait_for_run(2)
    check_that_it_came_back_as_it_was(before, merged[0])
    assert [each.result.state for each in merged] == ["PENDING"] * 3
    assert merged[0].end() == 3
    assert [each.result.get(timeout=20) for each in merged[1:]] == [3, 3]
    body = chord([tasks["ignores"].s().set(task_id="part"), tasks["adds"].s([4])])(tasks["adds"].s())
    part = Victim(redis_client, tasks["ignores"].AsyncResult("part"))
    part.wait_for_run(1)
    part.order(0)
    assert body.get(timeout=20) == 2 + 4
    assert "revoked" not in worker.log()
    assert "Traceback" not in worker.log()


@pytest.mark.parametrize("pool", in_time("prefork", "threads", "solo", "gevent", "eventlet"))
def test_preemption_sends_no_event_and_calls_no_link(start, call, tasks, pool, redis_client):
    worker = start(pool, EVENTS="1")
    app = tasks["adds"].app
    with app.connection_for_read() as connection:
        heard = []
        receiver = app.events.Receiver(connection, handlers={"*": lambda event: heard.append(event)})
        consuming = receiver.itercapture(limit=None, timeout=None, wakeup=False)
        next(consuming)  # the receiver subscribes
        victim = call("counts", link=tasks["adds"].si([1]), link_error=tasks["adds"].si([2]))
        victim.wait_for_run(1)
        before = victim.order(LONG_MS)
        victim.wait_for_run(2)
        check_that_it_came_back_as_it_was(before, victim)
        assert not redis_client.exists(app.backend.get_key_for_task(victim.id)), "there is a result"
        assert victim.end() == 2
        while not any(event["type"] == "task-succeeded" for event in heard):
            next(consuming)
    told = [event["type"] for event in heard if event.get("uuid") == victim.id]
    assert sorted(told) == [*["task-received"] * 2, *["task-started"] * 2, "task-succeeded"]
    wait_until(lambda: "preemption.adds" in worker.log().partition("succeeded")[2], 10, "the link runs")
    assert "revoked" not in worker.log().lower()
    assert len({each for each in worker.log().splitlines() if "preemption.adds" in each and "received" in each}) == 1


def test_task_that_fails_within_the_grace_has_failed(start, call, redis_client):
    start()
    victim = call("fails")
    victim.wait_for_run(1)
    victim.order(LONG_MS)
    with pytest.raises(ValueError, match="in the grace"):
        victim.result.get(timeout=20)
    wait_until(lambda: victim.row()["state"] == "failed", 10, "the job has ended")
    assert "preemptions" not in victim.row()
    assert redis_client.get(f"runs:{victim.id}") == b"1"


def test_task_that_stops_unasked_counts_a_delivery(start, call):
    worker = start()
    assert call("raises").result.get(timeout=20) == [0, True]
    early = call("early")
    early.wait_for_run(1)
    early.order(0)
    worker.wait_for(f"{early.id}] continues: the job must not run again", 10)
    assert early.end() == "ended"


def test_worker_death_or_shutdown_within_the_grace(start, call, redis_client):
    worker = start()
    victim = call("counts")
    victim.wait_for_run(1)
    (process,) = pool_of(worker)
    process.suspend()  # the task does not see the flag
    victim.order(LONG_MS)
    worker.wait_for("must stop within", 10)
    worker.kill()
    process.kill()
    worker = start(name="next")
    victim.wait_for_run(2)
    assert victim.row()["deliveries"] == "1", "as always when a worker dies"
    before = victim.row()
    victim.order(LONG_MS)
    worker.term()
    worker.wait(20)
    after = victim.row()
    assert (after["state"], after["deliveries"], after["enqueued"]) == ("pending", "1", before["enqueued"])


def test_cold_shutdown_within_the_grace_counts_a_delivery(start, call):
    worker = start()
    victim = call("ignores")
    victim.wait_for_run(1)
    before = victim.order(LONG_MS)
    worker.wait_for("must stop within", 10)
    worker.signal(signal.SIGQUIT)
    worker.wait(20)
    after = victim.row()
    assert (after["state"], after["deliveries"], after["enqueued"]) == ("pending", "1", before["enqueued"])
    assert "preemptions" not in after


def test_task_that_stops_in_a_soft_shutdown_was_preempted(start, call):
    worker = start(SOFT_S="3")
    victim = call("counts")
    victim.wait_for_run(1)
    (process,) = pool_of(worker)
    process.suspend()  # the task does not see the flag before the shutdown has begun
    before = victim.order(LONG_MS)
    worker.wait_for("must stop within", 10)
    worker.signal(signal.SIGQUIT)
    worker.wait_for("Soft Shutdown", 10)
    process.resume()
    worker.wait(20)
    after = victim.row()
    assert (after["state"], after.get("deliveries"), after["enqueued"]) == ("pending", None, before["enqueued"])
    assert after["preemptions"] == "1"


def test_tenant_below_its_minimum_gets_the_victims_slot(start, call, tasks, redis_client):
    """Here the server chooses the victim, the worker stops it, and the other tenant gets its slot."""
    worker = start("threads", concurrency=2)
    victims = [call("counts") for _ in range(2)]
    for victim in victims:
        victim.wait_for_run(1)
    quotas = encoded_tenants({"beta": Tenant(min=1)})
    Scheduler(redis_client, KEYS).configure(
        {"tenants": quotas, "preemption_delay_us": "100000", "preemption_grace_us": f"{LONG_MS}000"}
    )
    wanted = tasks["adds"].apply_async(([1, 2],), affinity=Affinity(tenant="beta"))
    assert wanted.get(timeout=20) == 3
    wait_until(lambda: redis_client.mget(*(f"runs:{each.id}" for each in victims)).count(b"2") == 1, 20, "it runs on")
    stopped = next(each for each in victims if redis_client.get(f"runs:{each.id}") == b"2")
    row = stopped.row()
    assert {name: row.get(name) for name in ("deliveries", "preemptions", "preempted_for")} == {
        "deliveries": None,
        "preemptions": "1",
        "preempted_for": "beta",
    }
    assert redis_client.lrange(f"preemptions:{stopped.id}", 0, -1) == [b"0", b"1"]
    assert sorted(each.end() for each in victims) == [1, 2]
    assert redis_client.hget(KEYS.key("counters"), "preempted") == b"1"
    assert "Traceback" not in worker.log()
