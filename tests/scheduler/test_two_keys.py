"""A job with a rate and an exclusive key passes the narrower one first, so it blocks no other job while it waits."""

import pytest

MAIL = "key=rate%3Amail rate=4/4000000"
PDF = "pdf"


def rules(customer, limit=1):
    """Return the rules of a job of *customer*; all customers share one rate."""
    return f"key={customer} limit={limit} {MAIL}"


def test_job_starts_when_both_keys_admit_it(fleet):
    fleet.join("worker", PDF, slots=9)
    for number in range(6):
        fleet.publish(f"{number}&", PDF, rules=rules("acme", limit=2))
    claims = fleet.inbox("worker")
    assert [each.job_id for each in claims] == ["0&", "1&"], "the key has room for two"
    ended = [job for claim in claims for job in fleet.end("worker", claim)]
    assert [each.job_id for each in ended] == ["2&", "3&"], "the rate lets two more start"
    assert [job for claim in ended for job in fleet.end("worker", claim)] == []
    fleet.advance_and_tick(1.5)
    assert fleet.jobs("worker") == ["4&"]


def test_job_blocked_by_keys_leaves_rates_to_others(fleet):
    fleet.join("worker", PDF, slots=9)
    for job, customer in (("1&", "acme"), ("2&", "acme"), ("3&", "acme"), ("4&", "other"), ("5&", "third")):
        fleet.publish(job, PDF, rules=rules(customer))
    assert fleet.jobs("worker") == ["1&", "4&", "5&"]


def test_job_blocked_by_rates_leaves_keys_to_others(fleet):
    fleet.join("worker", PDF, slots=9)
    fleet.scheduler.configure({"limits": "rate%3Amail=1/64000000"})
    fleet.publish("1&", PDF, rules=rules("other"))
    fleet.publish("2&", PDF, rules=rules("acme"))
    fleet.publish("3!", PDF, priority=1, rules="key=acme limit=1")
    assert fleet.jobs("worker") == ["1&", "3!"]


def test_rate_changed_at_run_time_applies_to_waiting_jobs(fleet):
    fleet.join("worker", PDF, slots=99)
    for number in range(40):
        fleet.publish(f"{number}!", PDF, rules=MAIL)
    assert len(fleet.jobs("worker")) == 4
    fleet.scheduler.configure({"limits": "rate%3A*=20/4000000"})
    fleet.advance_and_tick(0.4)
    assert len(fleet.jobs("worker")) == 2  # one every 0.2 s
    fleet.scheduler.configure({"limits": ""})
    fleet.advance_and_tick(1)
    assert len(fleet.jobs("worker")) == 1


def test_lowered_rate_admits_nothing_before_the_tick(fleet):
    """A change re-evaluates a limited number of rates; the others must not admit more jobs either."""
    for number in range(150):
        fleet.publish(f"{number}!", PDF, rules=f"key=rate%3A{number} rate=9/1000000")
        fleet.publish(f"next-{number}!", PDF, rules=f"key=rate%3A{number} rate=9/1000000")
    fleet.scheduler.configure({"limits": "rate%3A*=1/64000000"})
    fleet.join("worker", PDF, slots=400)
    for _ in range(5):
        fleet.scheduler.tick()
    started = fleet.jobs("worker")
    assert len(started) == 150
    assert not any(each.startswith("next") for each in started)


@pytest.fixture(params=["key=free limit=1", "key=tenant%3Aa quota=settings"], ids=["key", "tenant"])
def blocked(fleet, request):
    """Let job "1&" wait for key "busy" at the head of the rate, and "2&", which has a free key, behind it."""
    first = "key=rate%3Ahost rate=9/9000000"
    fleet.join("other", "excel")
    fleet.publish("holds!", "excel", rules="key=busy limit=1")
    fleet.publish("1&", PDF, rules=f"{first} key=busy limit=1", task_id="1")
    fleet.publish("2&", PDF, rules=f"{first} {request.param}", task_id="2")
    fleet.join("worker", PDF)
    assert fleet.jobs("worker") == []


def test_revoking_a_blocking_job_frees_its_slot(fleet, blocked):
    fleet.scheduler.revoke(["1"], (), keep_s=60)
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == ["2&"]


def test_moving_a_blocking_job_frees_its_slot_immediately(fleet, blocked):
    fleet.scheduler.move(["1&"], type_="excel")
    assert fleet.jobs("worker") == ["2&"]


@pytest.mark.parametrize("then", ["moves", "ends"])
@pytest.mark.parametrize("other_rules", ["key=b limit=2 key=rate%3At rate=8/8000000", "key=rate%3At rate=8/8000000"])
def test_job_overtakes_a_job_that_lacks_its_second_key(fleet, other_rules, then):
    """The first job is admitted by the rate but not in its lane, so slots are free, and the other job fits them."""
    fleet.join("worker", PDF, slots=9)
    fleet.publish("busy!", PDF, rules="key=a limit=1")
    fleet.publish("1&", PDF, rules="key=rate%3At rate=8/8000000 key=a limit=1")
    other = "2&" if " key=" in other_rules else "2!"
    fleet.publish(other, PDF, rules=other_rules)
    assert fleet.jobs("worker") == ["busy!"]
    if then == "moves":
        fleet.scheduler.move(["1&"], type_="excel")
    else:
        fleet.scheduler.revoke(["task-1&"], [], keep_s=60)
        fleet.scheduler.tick()
    assert fleet.jobs("worker") == [other]


def test_purging_a_blocking_job_frees_its_slot(fleet, blocked):
    fleet.publish("3&", PDF, priority=9, rules="key=rate%3Ahost rate=9/9000000 key=busy limit=1")
    fleet.scheduler.purge("excel")  # another type, so nothing changes
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == []
    fleet.scheduler.purge(PDF)
    assert fleet.scheduler.tick() is not None
    assert fleet.scheduler.reader.hash("key_state", "rate%3Ahost") == {}


def test_key_admits_again_within_one_invocation(fleet, redis_client):
    """With "first!" deleted, "third&" replaces "fourth&" at key "b", so "fifth&" advances to key "c".

    There the script finds capacity for "second&", which replaces "third&" at the former rate of "first!". So "fourth&"
    and "fifth&" are where they were. No earlier invocation evaluated the limit of key "c".
    """
    rate, other = "key=rate%3Ahost rate=9/9000000", "key=rate%3Aother rate=9/9000000"
    fleet.scheduler.configure({"limits": "c=0"})
    for job, other_rules in (
        ("first!", rate),
        ("second&", f"key=c limit=1 {rate}"),
        ("third&", f"{rate} key=b limit=1"),
        ("fourth&", f"key=b limit=1 {other}"),
        ("fifth&", f"{other} key=c limit=1"),
    ):
        fleet.publish(job, PDF, rules=other_rules)
        fleet.scheduler.advance(0.001)
    key = fleet.scheduler.keys.key
    assert redis_client.zrange(key("lane", PDF, "queued.0"), 0, -1) == [b"first!", b"fourth&"]
    redis_client.hdel(key("settings"), "limits")
    fleet.scheduler.revoke(["task-first!"], (), keep_s=60)
    assert redis_client.zrange(key("lane", PDF, "queued.0"), 0, -1) == [b"second&", b"fourth&"]
    assert redis_client.zrange(key("due_keys"), 0, -1) == [b"c"], "the key of second& alone"


def test_republished_limit_applies_to_waiting_jobs(fleet):
    fleet.join("worker", PDF, slots=9)
    fleet.publish("a&", PDF, rules=rules("acme"))
    fleet.publish("b&", PDF, rules=rules("acme"))
    fleet.scheduler.configure({"limits": "rate%3Amail=2/64000000"})
    fleet.publish("c&", PDF, rules=rules("acme", limit=2))
    assert {*fleet.jobs("worker")} == {"a&", "b&"}


def test_limit_set_by_a_task_outlasts_its_first_key(fleet):
    """While the job waits for its first key, no job waits for the rate or holds it, but the rate is still stored."""
    fleet.join("worker", PDF, slots=9)
    fleet.publish("holds!", PDF, rules="key=acme limit=1")
    (held,) = fleet.inbox("worker")
    fleet.publish("1&", PDF, rules=rules("acme"))
    assert fleet.jobs("worker") == []
    for name in ("2!", "3!", "4!", "5!"):
        fleet.publish(name, PDF, rules=MAIL)
    assert fleet.jobs("worker") == ["2!", "3!", "4!", "5!"]
    assert fleet.scheduler.reader.hash("key_state", "rate%3Amail") == {"=tests.task": "4/4000000", "coming": "1"}
    assert fleet.end("worker", held) == []
    assert fleet.scheduler.reader.hash("key_state", "rate%3Amail")["coming"] == "1"
    fleet.advance_and_tick(1)
    (last,) = fleet.inbox("worker")
    assert last.job_id == "1&"
    fleet.end("worker", last)
    assert fleet.scheduler.reader.hash("key_state", "rate%3Amail") == {}


def test_retry_with_a_reserved_key_precedes_waiting_jobs(fleet):
    """Therefore clients put such a key before the rate. Otherwise the two jobs would block each other forever."""
    ordered = f"key=all limit=1 order=1 {MAIL}"
    fleet.join("worker", PDF)
    for job, task in (("first&", "one"), ("second&", "two")):
        fleet.publish(job, PDF, task_id=task, rules=ordered)
        fleet.scheduler.advance(1)
    (claim,) = fleet.inbox("worker")
    fleet.publish("retry&", PDF, task_id="one", rules=ordered)
    started = [*fleet.end("worker", claim)]
    for _ in range(4):
        fleet.advance_and_tick(1)
        started += fleet.inbox("worker")
        started += fleet.end("worker", started[-1]) if started else []
    assert [each.job_id for each in started] == ["retry&", "second&"]
