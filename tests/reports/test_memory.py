"""`celery affinity memory`: bytes by kind and type, exact for a small database, and with an error for a sample."""

import re

import pytest

from celery_affinity.reports.memory import KINDS, memory_text, read_memory
from celery_affinity.schema.keys import Keys, StockLists

STOCK = StockLists(("celery",), ("celery",), (0, 3), "\x06\x16", lambda queue: queue != "celery")


def kinds(found):
    return {(row.kind, row.type): row for row in found.data}


@pytest.fixture
def filled(fleet, redis_client):
    """A server with data of each kind."""
    fleet.bury("buried", "mail")
    fleet.scheduler.leave("worker")
    fleet.publish("job", "pdf", message="m" * 50_000)
    fleet.publish("other", "excel")
    fleet.join("w2", "mail")
    fleet.publish("ended", "mail")
    fleet.end("w2", *fleet.inbox("w2"))
    redis_client.set("celery-task-meta-1", "r" * 10_000)
    redis_client.lpush("celery", "x" * 2_000)
    redis_client.sadd("_kombu.binding.celery", "celery")
    redis_client.set("{affinity:ml}:schema", "3")
    redis_client.set("session:1", "s" * 3_000)
    return fleet


def test_each_kind_of_data_is_measured(filled, redis_client):
    found = read_memory(filled.scheduler, STOCK)
    rows = kinds(found)
    assert {kind for kind, _ in rows} == {*KINDS}
    assert rows["messages", "pdf"].bytes >= 50_000
    assert rows["jobs", "excel"].keys == 1
    assert (rows["results", None].keys, rows["stock Celery", None].keys) == (1, 2)
    assert rows["results", None].bytes >= 10_000
    assert rows["dead letters", None].keys == 2, "the job hash and the message"
    assert rows["kept ends", None].keys == 1
    assert rows["others", None].bytes >= 3_000
    assert {row.error_bytes for row in found.data} == {0}
    assert found.keys == found.sampled == redis_client.dbsize()
    assert sum(row.keys for row in found.data) == found.keys
    assert found.used_bytes == found.rest_bytes + sum(row.bytes for row in found.data)


def test_text_names_the_limit_each_kind_and_how_to_free_it(filled, redis_client):
    redis_client.config_set("maxmemory", 500_000_000)
    try:
        found = read_memory(filled.scheduler, STOCK)
    finally:
        redis_client.config_set("maxmemory", 0)
    said = memory_text([found])
    assert "of maxmemory 500.0 MB (" in said
    assert "all measured" in said
    for kind, hint in KINDS.items():
        assert kind in said
        assert hint in said
    assert re.search(r"^messages +pdf +1 +5\d\.\d KB", said, re.M)
    assert "no maxmemory" in memory_text([read_memory(filled.scheduler, STOCK)])


def test_sample_of_a_large_database_is_within_its_error(fleet, redis_client):
    with redis_client.pipeline(transaction=False) as pipe:
        for nth in range(3_000):
            pipe.set(f"celery-task-meta-{nth}", "r" * (nth % 7 * 100))
            pipe.set(f"session:{nth}", "s" * 50)
        pipe.execute()
    exact = kinds(read_memory(fleet.scheduler, STOCK, 10_000))["results", None]
    found = read_memory(fleet.scheduler, STOCK, 1_000)
    guess = kinds(found)["results", None]
    assert found.sampled < found.keys
    assert 0 < guess.error_bytes < 0.3 * exact.bytes
    assert abs(guess.bytes - exact.bytes) <= 3 * guess.error_bytes, "six standard errors"
    assert abs(guess.keys - 3_000) < 600
    assert "the true value is within +- in 95 of 100 reports" in memory_text([found])


def test_large_list_and_lane_are_measured_exactly(fleet, redis_client):
    redis_client.rpush("celery", *["x" * 1_000] * 500)
    redis_client.zadd(Keys().key("dead"), {f"job{nth}": nth for nth in range(20_000)})
    with redis_client.pipeline(transaction=False) as pipe:
        for nth in range(1_000):
            pipe.set(f"session:{nth}", "")
        pipe.execute()
    rows = kinds(read_memory(fleet.scheduler, STOCK, 100))
    assert rows["stock Celery", None].bytes > 450_000
    assert rows["fleet data", None].bytes > 1_000_000


def test_empty_server_has_no_data(fleet, redis_client):
    redis_client.flushall()
    found = read_memory(fleet.scheduler, STOCK)
    assert (found.data, found.keys) == ([], 0)
    assert "no keys" in memory_text([found])
