"""Unscheduled queues behave like on kombu, on workers that serve scheduled queues as well."""

import json
import time

import pytest
from celery.exceptions import TaskRevokedError

from celery_affinity.errors import OptionError
from celery_affinity.publishing import app_config
from celery_affinity.publishing.message import PROPERTY
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings

from ..support.apps import APP
from ..support.fleet import PARTLY_SCHEDULED, POOLS_IN_TIME, MixedFleet, in_time
from ..support.members import claims_of, inbox_of, reporting_of
from ..support.processes import wait_until


@pytest.fixture
def fleet(valkey, redis_client, tmp_path, load_app, monkeypatch):
    app = load_app(APP)
    monkeypatch.setitem(app_config._SETTINGS, app, Settings(queues=PARTLY_SCHEDULED["affinity_queues"]))
    return MixedFleet(valkey, redis_client, tmp_path, app)


@pytest.mark.parametrize("pool", POOLS_IN_TIME)
def test_worker_serves_scheduled_and_unscheduled_queues(fleet, pool):
    fleet.start("mixed", "pdf", "mail", "excel", pool=pool)
    for number in range(10):
        fleet.send(f"pdf-{number}", "pdf")
        fleet.send(f"mail-{number}", "mail")
    later = fleet.send("later", "mail", countdown=0.5)
    retried = fleet.tasks["retry"].apply_async(("retried",), affinity="mail")
    wait_until(lambda: len(fleet.ledger.ends()) == 21, 15, "all ran")
    retried.get(timeout=10)
    assert {job: count for job, count in fleet.ledger.starts().items() if count != 1} == {"retried": 2}
    later.get(timeout=10)
    wait_until(fleet.all_slots_are_free, 10, "the slots are free")
    wait_until(lambda: not fleet.redis.exists("unacked"), 10, "all messages are acked")
    assert {each.type for each in fleet.report.status().types} <= {"excel", "pdf"}


def test_worker_without_scheduled_queues_runs_jobs(fleet):
    fleet.start("mail", "mail", pool="solo")
    fleet.send("job", "mail").get(timeout=10)
    fleet.send("next", "mail").get(timeout=10)


def test_unscheduled_queues_use_kombus_priorities(fleet):
    for job, priority in (("nine", 9), ("fifty", 50), ("three", 3), ("zero", 0), ("unset", None)):
        fleet.send(job, "mail", priority=priority)
    assert fleet.lists("mail") == [2, 1, 0, 2]
    fleet.send("of its affinity", "other", task="excel")
    assert fleet.lists("other") == [1, 0, 0, 0], "the priority of Affinity is for scheduled queues"
    with pytest.raises(OptionError, match="priority"):
        fleet.send("refused", "pdf", priority="high")
    message = json.loads(fleet.redis.lindex("mail\x06\x169", 0))
    assert PROPERTY not in message["properties"], "the message equals stock Celery's"
    assert message["properties"]["priority"] == 50
    fleet.start("worker", "mail", pool="solo")
    wait_until(lambda: len(fleet.ledger.ends()) == 5, 10, "all ran")
    assert fleet.started() == ["zero", "unset", "three", "nine", "fifty"]


def test_worker_obeys_kombus_prefetch_limit(fleet):
    fleet.start("mixed", "pdf", "mail", pool="threads", concurrency=1)
    fleet.send("long", "mail", 20)
    wait_until(lambda: fleet.ledger.starts()["long"], 10, "it runs")
    fleet.send("waiting", "mail")
    fleet.start("other", "pdf", "mail", pool="solo")
    wait_until(lambda: fleet.ledger.ends()["waiting"], 10, "the other worker takes it")
    assert not fleet.ledger.ends()["long"]


@pytest.mark.parametrize("pool", in_time("prefork", "threads"))
def test_worker_reads_again_when_prefetch_allows_it(fleet, pool):
    for number in range(10):
        fleet.send(f"job-{number}", "mail", 0.05)
    fleet.start("mixed", "pdf", "mail", pool=pool)
    wait_until(lambda: fleet.ledger.ends()["job-0"], 10, "the first job ends")
    wait_until(lambda: len(fleet.ledger.ends()) == 10, 4, "no job waits for the inbox to time out")


def test_scheduled_job_starts_when_an_unscheduled_job_ends(fleet):
    fleet.start("mixed", "pdf", "mail", pool="threads", concurrency=1)
    fleet.send("long", "mail", 3)
    wait_until(lambda: not fleet.all_slots_are_free(), 4, "the server counts the slot as taken")
    fleet.send("job", "pdf")
    (status,) = fleet.report.status().types
    assert status.pending == 1
    wait_until(lambda: fleet.ledger.ends()["job"], 7, "it does not wait for the next heartbeat, 5 s later")
    assert fleet.started() == ["long", "job"]


def test_kombu_restores_a_killed_workers_unscheduled_message(fleet):
    conf = {**PARTLY_SCHEDULED, "broker_transport_options": {"visibility_timeout": 1}}
    doomed = fleet.start("doomed", "pdf", "mail", pool="solo", conf=conf)
    fleet.send("late", "mail", 60)
    wait_until(lambda: fleet.ledger.starts()["late"], 10, "it runs")
    doomed.kill()
    ((_, read_at),) = fleet.redis.zrange("unacked_index", 0, -1, withscores=True)
    wait_until(lambda: time.time() > read_at + 1, 5, "the visibility timeout")
    fleet.start("healthy", "pdf", "mail", pool="solo", conf=conf)
    wait_until(lambda: fleet.ledger.ends()["late"], 15, "it runs again")
    assert fleet.ledger.starts() == {"late": 2}


@pytest.fixture
def reading(fleet):
    """A worker's channel that reads its inbox and `mail`."""
    with fleet.app.connection_for_read() as connection:
        channel = connection.default_channel
        claims = claims_of("worker", Keys().key("inbox", "worker"))
        channel.inbox = inbox_of(reporting_of(claims), schedules=lambda queue: queue == "pdf")
        channel.basic_consume("mail", no_ack=False, callback=lambda message: None, consumer_tag="tag")
        connection.transport.cycle._register_BRPOP(channel)
        wait_until(lambda: fleet.redis.info("clients")["blocked_clients"], 5, "it waits")
        yield channel


def test_message_received_while_a_worker_ends_is_requeued(fleet, reading):
    fleet.send("late", "mail")
    wait_until(lambda: not fleet.redis.exists("mail"), 5, "it is in the socket")
    reading.basic_cancel("tag")
    reading.close()
    assert fleet.lists("mail") == [1, 0, 0, 0]
    assert not fleet.redis.exists("unacked")


def test_ending_worker_does_not_wait_for_messages(fleet, reading):
    began_s = time.monotonic()
    reading.close()
    assert time.monotonic() - began_s < 0.9, "less than any wait for a list"


def test_stock_and_affinity_workers_share_a_queue(fleet):
    fleet.start("ours", "pdf", "mail", pool="solo")
    fleet.start_stock("stock", "mail", worker_prefetch_multiplier=1)
    for number in range(30):
        fleet.send(f"job-{number}", "mail", 0.05)
    fleet.send_from_stock(("late", ("from-stock", 0), {"queue": "mail"}))
    wait_until(lambda: len(fleet.ledger.ends()) == 31, 15, "all ran")
    assert set(fleet.ledger.starts().values()) == {1}
    assert len({entry.pid for entry in fleet.ledger.entries()}) == 2, "both had some"


def test_remote_control_lists_jobs_of_both_kinds_of_queues(fleet):
    fleet.start("mixed", "pdf", "mail", pool="threads")
    later = [fleet.send("later", queue, countdown=60).id for queue in ("mail", "pdf")]
    revoked = fleet.send("revoked", "mail", countdown=8)
    inspect = fleet.app.control.inspect(timeout=1)

    def scheduled():
        (entries,) = (inspect.scheduled() or {"": []}).values()
        return {entry["request"]["id"] for entry in entries}

    wait_until(lambda: scheduled() == {*later, revoked.id}, 10, "all of them are shown, each once")
    revoked.revoke()
    fleet.send("running", "mail", 3)
    wait_until(lambda: fleet.ledger.starts()["running"], 10, "it runs")
    (active,) = inspect.active().values()
    assert [each["args"][0] for each in active] == ["running"]
    (queues,) = inspect.active_queues().values()
    assert {queue["name"] for queue in queues} == {"pdf", "mail"}
    with pytest.raises(TaskRevokedError):
        revoked.get(timeout=10)


def test_size_and_purge_count_messages_in_lists(fleet):
    for priority in (0, 3, 9):
        fleet.send("job", "mail", priority=priority)
    with fleet.app.connection_for_write() as connection:
        channel = connection.default_channel
        assert channel._size("mail") == 3
        assert channel._has_queue("mail")
        assert channel.queue_purge("mail") == 3
        assert channel._size("mail") == 0
