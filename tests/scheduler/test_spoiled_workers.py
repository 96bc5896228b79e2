"""Another client deletes or overwrites sums over all workers: a repair rebuilds them from the workers' hashes."""

import pytest

from celery_affinity.schema.keys import KEYS, Keys

SUMS = ("members", "slots", "free_slots", "profiles", "capacity", "serving", "free", "heartbeats", "joined")


@pytest.fixture
def fleet(fleet):
    """A fleet of three workers, one of them without a free slot."""
    fleet.join("one", "pdf", slots=2)
    fleet.join("two", "pdf", "excel", slots=3)
    fleet.join("three", "excel")
    for job in ("first", "second", "third", "fourth"):
        fleet.publish(job, "excel")
    return fleet


def keys_of(client, name):
    prefix, is_one_of_many, _ = KEYS[name][0].partition("%s")
    return [each for each in client.keys(f"{Keys().base}{prefix}*") if is_one_of_many or each.endswith(prefix.encode())]


def sums(client):
    """Return the sums over all workers. Scores of free slots and times are left out, and so are sums of 0."""
    found = {}
    for name in SUMS:
        for key in keys_of(client, name):
            if KEYS[name][1] == "hash":
                found[key] = {field: value for field, value in client.hgetall(key).items() if value != b"0"}
            else:
                found[key] = sorted(client.zrange(key, 0, -1, withscores=name == "serving"))
    return found


@pytest.mark.parametrize(
    ("name", "how"),
    [*((name, "deleted") for name in SUMS), ("members", "wrong"), ("slots", "wrong"), ("capacity", "wrong")],
)
def test_deleted_or_wrong_sums_are_repaired(fleet, name, how):
    client = fleet.scheduler.client
    before = sums(client)
    if how == "deleted":
        assert client.delete(*keys_of(client, name))
    else:
        (key,) = keys_of(client, name)
        client.hset(key, mapping=dict.fromkeys(client.hkeys(key), 7))
    assert fleet.scheduler.repair()
    assert sums(client) == before
    assert not fleet.scheduler.repair()


def test_metrics_follow_whether_a_type_is_served(fleet):
    client, of_html = fleet.scheduler.client, Keys().key("metrics", "html")
    client.hset(Keys().key("capacity"), "html", 7)
    fleet.publish("fifth", "html")
    assert fleet.scheduler.reader.hash("counters").get("unserved") is None
    assert fleet.scheduler.repair()
    fleet.publish("sixth", "html")
    assert fleet.scheduler.reader.hash("counters")["unserved"] == "1"
    client.hset(of_html, "published", 1)
    assert fleet.scheduler.repair()
    assert not fleet.scheduler.repair()
    assert client.hgetall(of_html) == {b"published before": b"1"}
    client.persist(of_html)
    fleet.join("four", "html")
    assert fleet.scheduler.repair()
    assert not fleet.scheduler.repair()
    assert client.hgetall(of_html) == {b"published": b"1"}
    assert client.ttl(of_html) == -1
