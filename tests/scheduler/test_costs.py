"""The work of one invocation is bounded, in commands and in bytes, regardless of the numbers of jobs and workers.

Work is counted in the commands that a script calls. If long values are expensive instead of commands, the times at two
sizes are compared.
"""

# Longer than 300 lines: a case for each script.

from contextlib import suppress
from types import SimpleNamespace

import pytest
import redis
from celery import Celery

from celery_affinity import OptionError, SettingError
from celery_affinity.dispatcher.ingest import Ingest
from celery_affinity.leases.member import Member
from celery_affinity.publishing.message import written_message
from celery_affinity.scheduler.messages import Claim, EndArguments, JoinArguments
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema import constants
from celery_affinity.schema.constants import MAX_MOVES, MAX_TYPES
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings

from ..support.counting import Counting

LARGE = 600_000  # bytes: two such messages exceed the limit of one invocation


@pytest.fixture
def scheduler(redis_client):
    return Counting(redis_client, Keys())


def join(scheduler, worker, *types, slots=1):
    scheduler.join(JoinArguments(worker, f"{worker}@host", types, slots), shared_settings(Settings()))


def publish(scheduler, number, type_="pdf", *, size=1, **fields):
    """Publish jobs uncounted, each with its own task unless *fields* has a task id."""
    uncounted = Scheduler(scheduler.client, scheduler.keys)
    given = [{"task_id": f"task{each}", **fields} for each in range(number)]
    uncounted.publish(*[NewJob(f"job{each}", type_, "x" * size, **given[each]) for each in range(number)])


def inbox(scheduler, worker):
    payloads = iter(lambda: scheduler.client.rpop(scheduler.keys.key("inbox", worker)), None)
    return [Claim.parse(payload) for payload in payloads if not payload.startswith(b"\n")]


def end(scheduler, worker, claims, sequence=1):
    ends = [EndArguments(claim.job_id, claim.fence, "acked") for claim in claims]
    return scheduler.release_and_claim(worker, acks=[], ends=ends, sequence=sequence, inline=True)


# -- many jobs of one task


def test_jobs_of_a_task_with_many_cost_the_same(scheduler, redis_client):
    took_us = {}
    for number in (100, 10_000):
        redis_client.flushall()
        publish(scheduler, number, task_id="the same")
        join(scheduler, "worker", "pdf", slots=MAX_MOVES)
        took_us[number] = []
        for sequence in range(5):
            scheduler.calls.clear()
            end(scheduler, "worker", inbox(scheduler, "worker"), sequence)  # ten end, the next ten are claimed
            scheduler.publish(NewJob(f"late{sequence}", "pdf", "x", task_id="the same"))
            took_us[number].append(sum(us for *_, us in scheduler.calls))
            scheduler.sync("worker", [], slots=MAX_MOVES, other=0, draining=False)
            redis_client.delete(scheduler.keys.key("claims", "worker"))
            scheduler.sync("worker", [], slots=MAX_MOVES, other=0, draining=False)
    assert min(took_us[10_000]) < 5 * min(took_us[100])


def test_revoke_ends_many_jobs_of_a_task_in_pages(scheduler, redis_client):
    publish(scheduler, 1_000, task_id="the same")
    publish(scheduler, 1, "excel", task_id="another")
    assert scheduler.revoke(["the same", "another"], [], keep_s=60).jobs == 1_000
    assert scheduler.most() < 400
    assert redis_client.zcard(scheduler.keys.key("lane", "pdf", "queued.0")) == 0


def test_jobs_of_a_task_are_listed_until_all_end(scheduler, redis_client):
    join(scheduler, "worker", "pdf", slots=3)
    publish(scheduler, 3, task_id="the same")
    first, second, third = inbox(scheduler, "worker")
    text, several = scheduler.keys.key("task", "the%20same"), scheduler.keys.key("jobs_of_task", "the%20same")
    assert redis_client.get(text) == b"+"
    assert redis_client.zrange(several, 0, -1) == [b"job0", b"job1", b"job2"]
    end(scheduler, "worker", [first, third])
    assert redis_client.get(text) == b"job1"
    assert not redis_client.exists(several)
    end(scheduler, "worker", [second], 2)
    assert redis_client.get(text) == b"job1"
    assert redis_client.ttl(text) > 0


# -- stamps


def test_message_with_too_many_stamps_is_refused(redis_client, valkey):
    app = Celery("stamped", broker=valkey.url)
    app.conf.broker_transport = "celery_affinity:Transport"

    @app.task(name="stamped", shared=False)
    def task():
        pass

    task.apply_async(stamped_headers=["of"], of=["x"] * constants.MAX_STAMPS)
    published = redis_client.dbsize()
    with pytest.raises(OptionError, match=r"stamps of a message must be at most 100.* got: 101 of"):
        task.apply_async(stamped_headers=["of"], of=[str(each) for each in range(constants.MAX_STAMPS + 1)])
    with pytest.raises(OptionError, match=r"at most 100, and 20,000 bytes together.* got: 1 of 30,003 bytes"):
        task.apply_async(stamped_headers=["of"], of=["x" * 30_000])
    assert redis_client.dbsize() == published
    app.close()


@pytest.mark.parametrize("stamps", [" ".join(f"of:{each}" for each in range(101)), "of:" + "x" * 20_000])
@pytest.mark.parametrize("arrow", ["publish", "ingest"])
def test_scripts_refuse_too_many_stamps_before_they_write(scheduler, redis_client, stamps, arrow):
    job = NewJob("job", "pdf", "message", stamps=stamps.split())
    redis_client.lpush("list", "message")
    more = {"list": "list", "readable": 1} if arrow == "ingest" else {}
    with suppress(redis.ResponseError):
        scheduler._run(arrow, job.arguments, **more)
    assert not redis_client.exists(scheduler.keys.key("stamped", "of:7"))
    assert not redis_client.zcard(scheduler.keys.key("lane", "pdf", "queued.0"))


def test_message_above_the_size_limit_is_refused():
    assert written_message({"body": "x" * 1_000})
    with pytest.raises(OptionError, match=r"at most 100,000,000 characters.* got: 100,000,0"):
        written_message({"body": "x" * 100_000_000})


# -- bytes


def test_one_invocation_moves_limited_bytes(scheduler):
    join(scheduler, "worker", "pdf", slots=0)
    publish(scheduler, 9, size=LARGE)
    scheduler.calls.clear()
    scheduler.sync("worker", [], slots=8, other=0, draining=False)
    assert scheduler.most("lpush") == 2
    claims = inbox(scheduler, "worker")
    assert len(claims) == 8  # the invocation returned the rest, and further ones continued
    (following,) = end(scheduler, "worker", claims)
    assert len(following.message) == LARGE


def test_reply_carries_limited_bytes(scheduler):
    join(scheduler, "worker", "pdf", slots=8)
    publish(scheduler, 16, size=LARGE)
    claims = inbox(scheduler, "worker")
    assert len(end(scheduler, "worker", claims)) == 2
    assert len(inbox(scheduler, "worker")) == 6


def test_unread_jobs_of_blocked_loops_are_requeued_in_parts(scheduler):
    join(scheduler, "worker", "pdf", slots=8)
    publish(scheduler, 8, size=LARGE)
    scheduler.calls.clear()
    scheduler.heartbeat("worker", loop_runs=False)
    assert scheduler.most("rpop") == 2
    assert scheduler.client.zcard(scheduler.keys.key("lane", "pdf", "queued.0")) == 8


def test_large_jobs_are_published_in_parts(scheduler):
    scheduler.publish(*[NewJob(f"job{each}", "pdf", "x" * LARGE) for each in range(6)])
    assert scheduler.most("set") == 2
    assert sum(name == "publish" for name, *_ in scheduler.calls) == 3


def test_large_stock_messages_are_read_singly_after_the_first(scheduler, redis_client, monkeypatch):
    join(scheduler, "worker", "pdf")
    ingest, read = Ingest(Celery("stock")), []
    monkeypatch.setattr(
        scheduler.client,
        "lrange",
        lambda *words: read.append(redis_client.execute_command("LRANGE", *words)) or read[-1],
    )
    redis_client.lpush("pdf", *["x" * LARGE] * (MAX_MOVES + 3))
    while lists := scheduler.tick(ingest.lists(scheduler)).lists:
        ingest.move(scheduler, lists)
    assert [len(each) for each in read] == [MAX_MOVES, 1, 1, 1, 0]
    assert redis_client.zcard(scheduler.keys.key("dead")) == MAX_MOVES + 3


# -- claims


def test_sync_returns_unnamed_claims_in_parts(scheduler):
    join(scheduler, "worker", "pdf", slots=100)
    scheduler.configure({"heartbeat_interval_us": "1"})
    publish(scheduler, 100)
    inbox(scheduler, "worker")  # this reply is lost
    asked = set()
    scheduler.calls.clear()
    for _ in range(11):
        synced = scheduler.sync("worker", [], slots=0, other=0, draining=False)
        asked |= set(synced.unnamed)
        scheduler.requeue("worker", synced.unnamed, counted=False)
    assert len(asked) == 100
    assert scheduler.most() < 250


@pytest.mark.parametrize("how", ["leave", "recover"])
def test_worker_with_many_claims_is_removed_in_parts(scheduler, how):
    join(scheduler, "worker", "pdf", slots=1_000)
    publish(scheduler, 1_000)
    scheduler.calls.clear()
    getattr(scheduler, how)("worker")
    assert scheduler.most() < 250
    assert scheduler.client.zcard(scheduler.keys.key("lane", "pdf", "queued.0")) == 1_000
    assert sum(name == how for name, *_ in scheduler.calls) <= 101


# -- profiles, types, lists


def test_type_served_by_many_profiles_costs_only_their_reading(scheduler, redis_client):
    join(scheduler, "worker", "pdf")
    key = scheduler.keys.key
    redis_client.zadd(key("serving", "pdf"), {f"profile{each}": 2 for each in range(9_000)})
    redis_client.hset(key("free_slots"), mapping={f"profile{each}": 0 for each in range(9_000)})
    scheduler.calls.clear()
    (published,) = scheduler.publish(NewJob("job", "pdf", "message"))
    assert published.served
    assert [claim.job_id for claim in inbox(scheduler, "worker")] == ["job"]
    assert scheduler.most() < 60


def test_sample_of_many_free_profiles_is_compared(scheduler):
    for number in range(400):
        join(scheduler, f"w{number}", "pdf", f"own{number}")
    scheduler.calls.clear()
    scheduler.publish(NewJob("job", "pdf", "message"))
    assert scheduler.most("zrange") < 110
    assert scheduler.most() < 160
    key = scheduler.keys.key
    assert sum(scheduler.client.hlen(key("claims", f"w{number}")) for number in range(400)) == 1


def test_score_of_each_type_is_looked_up_once(scheduler):
    types = [f"t{number}" for number in range(100)]
    join(scheduler, "worker", *types, slots=0)
    uncounted = Scheduler(scheduler.client, scheduler.keys)
    uncounted.publish(*[NewJob(f"job{type_}", type_, "message") for type_ in types])
    scheduler.calls.clear()
    scheduler.sync("worker", [], slots=MAX_MOVES, other=0, draining=False)
    assert scheduler.most("hget") < 200


def test_tick_removes_dead_workers_in_parts(scheduler, redis_client):
    for number in range(4):
        join(scheduler, f"w{number}", *[f"t{number}.{each}" for each in range(600)])
    key = scheduler.keys.key
    seconds, micros = redis_client.time()
    now_us = seconds * 1_000_000 + micros
    redis_client.zadd(key("heartbeats"), {f"w{number}": now_us - 60_000_000 + number for number in range(4)})
    redis_client.hset(key("clock"), mapping={"ticked": now_us, "grace": now_us - 60_000_000})
    assert len(scheduler.tick().dead_workers) == 2
    assert len(scheduler.tick().dead_workers) == 2


def test_tick_checks_any_number_of_lists(scheduler, redis_client):
    redis_client.lpush("list 8999", "message")
    assert scheduler.tick([f"list {number}" for number in range(9_000)]).lists == ["list 8999"]


def test_worker_with_too_many_queues_is_refused():
    membership = Member.__new__(Member)  # no server, no threads: the refusal precedes their use
    membership.has_started = False
    with pytest.raises(SettingError, match="must consume at most 1,000 scheduled queues, got: 1,001"):
        membership.join(None, [f"q{number}" for number in range(MAX_TYPES + 1)])
    membership.capacity = SimpleNamespace(types=tuple(f"q{number}" for number in range(MAX_TYPES)))
    membership._rejoin = False
    membership.serve("one more", True)
    assert len(membership.capacity.types) == MAX_TYPES
    assert not membership._rejoin


def test_choice_among_many_heads_is_bounded_and_fills_all_slots(scheduler):
    types = [f"type{number}" for number in range(300)]
    jobs = [
        NewJob(f"{'x' * 50}{type_}.{priority}", type_, "x", priority=priority)
        for type_ in types
        for priority in range(11)
    ]
    best = NewJob("best", types[-1], "x", on_demand=True, priority=10)
    Scheduler(scheduler.client, scheduler.keys).publish(*jobs, best)
    assert sum(len(job.id) for job in jobs) > 3 * constants.MAX_COMPARED_BYTES
    join(scheduler, "worker", *types, slots=40)
    held = inbox(scheduler, "worker")
    assert len(held) == 40
    for sequence in range(1, 11):  # each choice compares further heads
        held = [*held[1:], *end(scheduler, "worker", held[:1], sequence)]
    assert "best" in {claim.job_id for claim in held}


def test_repair_checks_workers_in_parts(scheduler):
    for nth in range(500):
        join(scheduler, f"worker{nth}", "pdf", f"type{nth % 30}")
    publish(scheduler, 250)
    scheduler.calls.clear()
    first = 0
    while first >= 0:
        first, _, found = scheduler._run("repair", first=first, how=0)
        assert found == []
    assert scheduler.most() < 2_000
    assert scheduler.most("hgetall") <= 100, "each worker's claims are looked at once"


def test_repair_checks_jobs_with_keys_in_parts(scheduler):
    Scheduler(scheduler.client, scheduler.keys).publish(
        *[
            NewJob(
                f"job{n}!", f"type{n % 4}", "x", priority=n % 11, rules=f"key=k{n % 900} limit=1", task_id=f"task{n}"
            )
            for n in range(1200)
        ]
    )
    first, calls = 0, []
    while first >= 0:
        first, _, found = scheduler._run("repair", first=first, how=0)
        calls.append(first)
        assert found == []
    assert scheduler.most() < 2_000
    assert len(set(calls)) == len(calls) > 900 / constants.MAX_KEYS, "each goes on where the one before ended"


@pytest.mark.slow_on_redis
@pytest.mark.parametrize(("served", "waiting"), [(0, 1100), (1100, 1100), (1100, 100)])
def test_repair_checks_many_types_in_parts(scheduler, redis_client, served, waiting):
    """The server chooses the number of types in a page of a hash: a small hash is one page."""
    for nth in range(served):
        join(scheduler, f"worker{nth}", f"served{nth}")
    Scheduler(redis_client, scheduler.keys).publish(*[NewJob(f"job{nth}", f"type{nth}", "x") for nth in range(waiting)])
    heads = scheduler.keys.key("heads")
    spoiled = (0, waiting // 2, waiting - 1)
    redis_client.hset(heads, mapping={f"type{nth}": "queued.0 1 nothing" for nth in spoiled})
    first, _, found = scheduler._run("repair", first=0, how=0)
    scheduler.calls.clear()  # this call may have computed sums over all workers
    calls = []
    while first >= 0:
        first, _, some = scheduler._run("repair", first=first, how=0)
        calls.append(first)
        found += some
    told = [each.decode().partition(": ") for each in found]
    assert {f"type{nth} of {heads}" for nth in spoiled} <= {entry for entry, _, _ in told}
    assert all(f"job{nth}".encode() in redis_client.hget(heads, f"type{nth}") for nth in spoiled)
    assert len(set(calls)) == len(calls) > 100, "each goes on where the one before ended"
    assert scheduler.most() < 1_000


# -- dead letters


def test_excess_dead_letters_are_deleted_in_parts(scheduler, redis_client):
    join(scheduler, "worker", "pdf", slots=MAX_MOVES)
    uncounted = Scheduler(redis_client, scheduler.keys)
    for part in range(20):
        if part == 19:
            scheduler.configure({"dead_max": "0"})
            scheduler.calls.clear()
        uncounted.publish(*[NewJob(f"job{part}.{each}", "pdf", "message") for each in range(MAX_MOVES)])
        ends = [EndArguments(claim.job_id, claim.fence, "rejected") for claim in inbox(scheduler, "worker")]
        scheduler.release_and_claim("worker", acks=[], ends=ends, sequence=part, inline=False)
    assert scheduler.most() < 1_000
    assert 0 < redis_client.zcard(scheduler.keys.key("dead")) < 190
