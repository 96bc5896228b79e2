"""A job with a rate and an exclusive key passes the narrower one first, so it holds up nobody where it waits."""

import pytest

MAIL = "key=rate%3Amail rate=4/4000000"
PDF = "pdf"


def rules(customer, limit=1):
    """Return the rules of a job of *customer*: all customers share one rate."""
    return f"key={customer} limit={limit} {MAIL}"


def pass_some_time(fleet, seconds):
    fleet.scheduler.advance(seconds)
    fleet.scheduler.tick()


def test_a_job_starts_when_both_let_it(fleet):
    fleet.join("worker", PDF, slots=9)
    for number in range(6):
        fleet.publish(f"{number}&", PDF, rules=rules("acme", limit=2))
    claims = fleet.inbox("worker")
    assert [each.job_id for each in claims] == ["0&", "1&"], "the key has room for two"
    ended = [job for claim in claims for job in fleet.end("worker", claim)]
    assert [each.job_id for each in ended] == ["2&", "3&"], "the rate lets two more start"
    assert [job for claim in ended for job in fleet.end("worker", claim)] == []
    pass_some_time(fleet, 1.5)
    assert fleet.jobs("worker") == ["4&"]


def test_one_customer_that_waits_for_its_key_leaves_the_rate_to_others(fleet):
    fleet.join("worker", PDF, slots=9)
    for job, customer in (("1&", "acme"), ("2&", "acme"), ("3&", "acme"), ("4&", "other"), ("5&", "third")):
        fleet.publish(job, PDF, rules=rules(customer))
    assert fleet.jobs("worker") == ["1&", "4&", "5&"]


def test_who_waits_for_a_rate_leaves_the_key_to_others(fleet):
    fleet.join("worker", PDF, slots=9)
    fleet.scheduler.configure({"limits": "rate%3Amail=1/64000000"})
    fleet.publish("1&", PDF, rules=rules("other"))
    fleet.publish("2&", PDF, rules=rules("acme"))
    fleet.publish("3!", PDF, priority=1, rules="key=acme limit=1")
    assert fleet.jobs("worker") == ["1&", "3!"]


def test_a_rate_is_changed_at_run_time_for_who_waits_as_well(fleet):
    fleet.join("worker", PDF, slots=99)
    for number in range(40):
        fleet.publish(f"{number}!", PDF, rules=MAIL)
    assert len(fleet.jobs("worker")) == 4
    fleet.scheduler.configure({"limits": "rate%3A*=20/4000000"})
    pass_some_time(fleet, 0.4)
    assert len(fleet.jobs("worker")) == 2  # one for each 0.2 s
    fleet.scheduler.configure({"limits": ""})
    pass_some_time(fleet, 1)
    assert len(fleet.jobs("worker")) == 1


def test_no_job_starts_of_a_rate_that_was_lowered_and_that_no_tick_has_got_to_yet(fleet):
    """Of very many rates a change renews some at once: those that it did not get to are not open to more jobs."""
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
def held_up(fleet, request):
    """Have job "1&" wait for key "busy" behind the rate that it has in front, and "2&" behind it, of a free key."""
    first = "key=rate%3Ahost rate=9/9000000"
    fleet.join("other", "excel")
    fleet.publish("holds!", "excel", rules="key=busy limit=1")
    fleet.publish("1&", PDF, rules=f"{first} key=busy limit=1", task_id="1")
    fleet.publish("2&", PDF, rules=f"{first} {request.param}", task_id="2")
    fleet.join("worker", PDF)
    assert fleet.jobs("worker") == []


def test_who_was_held_up_by_one_that_is_revoked_gets_the_free_slot(fleet, held_up):
    fleet.scheduler.revoke(["1"], (), keep_s=60)
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == ["2&"]


def test_who_was_held_up_by_one_that_moves_gets_the_free_slot_at_once(fleet, held_up):
    fleet.scheduler.move(["1&"], type_="excel")
    assert fleet.jobs("worker") == ["2&"]


@pytest.mark.parametrize("then", ["moves", "ends"])
@pytest.mark.parametrize("its_rules", ["key=b limit=2 key=rate%3At rate=8/8000000", "key=rate%3At rate=8/8000000"])
def test_who_was_held_up_by_one_that_waits_for_its_second_key_gets_the_free_slot(fleet, its_rules, then):
    """The first one stands for the rate, and not in its lane: so slots are free, and the other one fits them."""
    fleet.join("worker", PDF, slots=9)
    fleet.publish("busy!", PDF, rules="key=a limit=1")
    fleet.publish("1&", PDF, rules="key=rate%3At rate=8/8000000 key=a limit=1")
    other = "2&" if " key=" in its_rules else "2!"
    fleet.publish(other, PDF, rules=its_rules)
    assert fleet.jobs("worker") == ["busy!"]
    if then == "moves":
        fleet.scheduler.move(["1&"], type_="excel")
    else:
        fleet.scheduler.revoke(["task-1&"], [], keep_s=60)
        fleet.scheduler.tick()
    assert fleet.jobs("worker") == [other]


def test_who_was_held_up_by_one_that_is_purged_gets_the_free_slot(fleet, held_up):
    fleet.publish("3&", PDF, priority=9, rules="key=rate%3Ahost rate=9/9000000 key=busy limit=1")
    fleet.scheduler.purge("excel")  # of another type: nothing changes
    fleet.scheduler.tick()
    assert fleet.jobs("worker") == []
    fleet.scheduler.purge(PDF)
    assert fleet.scheduler.tick() is not None
    assert fleet.scheduler.reader.hash("key_state", "rate%3Ahost") == {}


def test_who_is_called_back_and_goes_on_again_in_one_call_has_no_tick_look_at_its_key(fleet, redis_client):
    """With "first!" gone, "third&" takes the place of "fourth&" at key "b"; so "fifth&" goes on to key "c".

    There the script sees that the key has room for "second&", which takes the place of "third&" at the rate that
    "first!" had: so "fourth&" and "fifth&" are where they were. No call has got to the limit of key "c" before.
    """
    rate, other = "key=rate%3Ahost rate=9/9000000", "key=rate%3Aother rate=9/9000000"
    fleet.scheduler.configure({"limits": "c=0"})
    for job, its_rules in (
        ("first!", rate),
        ("second&", f"key=c limit=1 {rate}"),
        ("third&", f"{rate} key=b limit=1"),
        ("fourth&", f"key=b limit=1 {other}"),
        ("fifth&", f"{other} key=c limit=1"),
    ):
        fleet.publish(job, PDF, rules=its_rules)
        fleet.scheduler.advance(0.001)
    key = fleet.scheduler.keys.key
    assert redis_client.zrange(key("lane", PDF, "queued.0"), 0, -1) == [b"first!", b"fourth&"]
    redis_client.hdel(key("settings"), "limits")
    fleet.scheduler.revoke(["task-first!"], (), keep_s=60)
    assert redis_client.zrange(key("lane", PDF, "queued.0"), 0, -1) == [b"second&", b"fourth&"]
    assert redis_client.zrange(key("due_keys"), 0, -1) == [b"c"], "the key of second& alone"


def test_a_limit_that_is_published_anew_counts_for_who_waits_for_the_key(fleet):
    fleet.join("worker", PDF, slots=9)
    fleet.publish("a&", PDF, rules=rules("acme"))
    fleet.publish("b&", PDF, rules=rules("acme"))
    fleet.scheduler.configure({"limits": "rate%3Amail=2/64000000"})
    fleet.publish("c&", PDF, rules=rules("acme", limit=2))
    assert {*fleet.jobs("worker")} == {"a&", "b&"}


def test_what_a_task_states_of_a_key_stands_until_its_job_is_through(fleet):
    """Nobody waits for the rate or holds it while the job waits for its first key: the rate is known all the same."""
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
    pass_some_time(fleet, 1)
    (last,) = fleet.inbox("worker")
    assert last.job_id == "1&"
    fleet.end("worker", last)
    assert fleet.scheduler.reader.hash("key_state", "rate%3Amail") == {}


def test_a_retry_that_its_key_is_kept_for_is_not_held_up_by_a_job_that_waits_for_the_key(fleet):
    """So clients write such a key before the rate; in the other order the two would wait for each other for ever."""
    ordered = f"key=all limit=1 order=1 {MAIL}"
    fleet.join("worker", PDF)
    for job, task in (("first&", "one"), ("second&", "two")):
        fleet.publish(job, PDF, task_id=task, rules=ordered)
        fleet.scheduler.advance(1)
    (claim,) = fleet.inbox("worker")
    fleet.publish("retry&", PDF, task_id="one", rules=ordered)
    started = [*fleet.end("worker", claim)]
    for _ in range(4):
        pass_some_time(fleet, 1)
        started += fleet.inbox("worker")
        started += fleet.end("worker", started[-1]) if started else []
    assert [each.job_id for each in started] == ["retry&", "second&"]
