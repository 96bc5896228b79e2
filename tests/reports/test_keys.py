"""Keys in use: found by their waiting jobs and by the jobs that workers hold, with bounded reads."""

from celery_affinity.options.key_templates import encoded_key
from celery_affinity.reports import key_usage
from celery_affinity.schema.keys import Keys


def rules(key, limit=1):
    return f"key={encoded_key('exclusive', key)} limit={limit}"


def test_keys_that_are_held_or_waited_for_are_found(fleet, reader):
    fleet.join("worker", "pdf", slots=9)
    for number, key in enumerate(("city:HH", "city:HH", "city:B", "host:a b")):
        fleet.publish(f"job{number}!", "pdf", rules=rules(key))
        fleet.scheduler.advance(1)
    fleet.publish("elsewhere!", "drawing", rules=rules("host:new", 4), priority=3)
    fleet.publish("plain", "pdf")
    found = key_usage.find_keys(reader, "*", 10)
    assert found.are_all
    assert [(each.key, each.limit, each.held, each.waiting) for each in found.keys] == [
        ("city:HH", 1, 1, 1),
        ("host:new", 4, 0, 1),
        ("city:B", 1, 1, 0),
        ("host:a b", 1, 1, 0),
    ]
    first = found.keys[0]
    assert (first.oldest_wait_s, first.holder.task_id, first.holder.held_s) == (3, "task-job0!", 4)
    assert [each.key for each in key_usage.find_keys(reader, "host:*", 10).keys] == ["host:new", "host:a b"]
    assert key_usage.find_keys(reader, "host:a?b", 10) == key_usage.KeysInUse([], are_all=True)
    assert not key_usage.find_keys(reader, "*", 3).are_all


def test_one_key_is_shown_with_those_who_wait(fleet, reader):
    fleet.join("worker", "pdf", slots=2)
    for number in range(4):
        fleet.publish(f"job{number}!", "pdf", rules=rules("city:HH", 2), on_demand=number == 3)
    shown = key_usage.show_key(reader, "city:HH")
    assert [each.job_id for each in shown.holders] == ["job0!", "job1!"]
    assert shown.stated == {"tests.task": "2"}
    assert {(each.type, each.on_demand, each.jobs, each.kept_back) for each in shown.waiting} == {
        ("pdf", False, 1, True),
        ("pdf", True, 1, True),
    }
    assert key_usage.show_key(reader, "city") is None


def test_a_key_that_was_too_long_is_shown_as_it_is_listed(fleet, reader):
    fleet.publish("job!", "pdf", rules=rules("a long key " * 100))
    (found,) = key_usage.find_keys(reader, "a long*", 10).keys
    assert key_usage.show_key(reader, found.key).key == found
    assert key_usage.show_key(reader, "a long key " * 100).key == found


def test_a_rate_is_a_key_without_holders(fleet, reader):
    fleet.join("worker", "pdf", slots=5)
    for number in range(3):
        fleet.publish(f"job{number}!", "pdf", rules="key=rate%3Aacme rate=2/60000000")
    (found,) = key_usage.find_keys(reader, "*", 10).keys
    assert (found.limit, found.held, found.waiting, found.starts.most, found.starts.next_s) == (None, 0, 1, 2, 30)


def test_no_more_is_read_than_a_page_needs(fleet, reader, redis_client):
    for number in range(60):
        fleet.publish(f"job{number}!", "pdf", rules=rules(f"key {number}"))
    before = redis_client.info("stats")["total_commands_processed"]
    assert len(key_usage.find_keys(reader, "*", 5).keys) == 5
    assert redis_client.info("stats")["total_commands_processed"] - before < 60


def test_what_somebody_else_wrote_is_no_key(fleet, reader, redis_client):
    fleet.join("worker", "pdf", slots=5)
    fleet.publish("job!", "pdf", rules=rules("city:HH"))
    fleet.publish("waits!", "pdf", rules=rules("city:HH"))
    key = Keys().key
    redis_client.hset(key("settings"), "limits", "x =1 *=y city")
    redis_client.hset(key("key_state", "city%3AHH"), "=t", "x")
    redis_client.zadd(key("waiting_keys"), {b"\xff": 0})
    redis_client.hset(key("key_state", "city%3AHH"), "x", "x")
    redis_client.set(key("held", "another"), "x")
    redis_client.hset(key("job", "job!"), "rules", "x")
    (found,) = key_usage.find_keys(reader, "*", 10).keys
    assert (found.key, found.held, found.waiting) == ("city:HH", 1, 1)
    assert key_usage.show_key(reader, "another") is None
