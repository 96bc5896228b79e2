"""Who looks sends a bounded number of commands, each of which is short, whatever is pending."""

import random
from collections import Counter

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from celery_affinity.cli import text
from celery_affinity.observe import claim_order
from celery_affinity.observe.claim_order import Order, next_jobs
from celery_affinity.observe.explain import explain
from celery_affinity.observe.flower import merged
from celery_affinity.observe.metrics import StatusCollector
from celery_affinity.observe.status import Report
from celery_affinity.rules.keys import Keys
from celery_affinity.rules.score import Weights
from celery_affinity.server.connections import pipelined
from celery_affinity.server.connections.kept import Line
from celery_affinity.server.reader import Lane, Reader
from celery_affinity.server.scheduler import Scheduler

from ..support.scripted_fleet import ScriptedFleet

MANY_TYPES = 600  # a hash of more than 512 fields is no longer read as a whole by one HSCAN

#: Key -> commands that take a time that does not grow with what it holds; or that hold no more than a fleet's workers.
SHORT = {
    "lane": {"ZCARD", "ZCOUNT", "ZSCORE", "ZRANGE", "ZRANGEBYSCORE"},
    "heads|capacity|profiles|free_slots|slots|members|durations": {"HSCAN", "HMGET", "HGET"},
    "scheduled|dead": {"ZCARD"},
    "beats": {"ZSCAN"},
    "serving": {"ZRANGE"},
    "worker|job|settings|counters": {"HGETALL", "HGET", "HMGET"},
    "claims": {"HLEN", "HKEYS"},
    "task": {"GET"},
    "schema": {"GET"},
}


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


def _status(reader):
    return text.status(Report(reader).status())


def _metrics(reader):
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: Report(reader).status()))
    return generate_latest(registry)


def _page(reader):
    status = Report(reader).status()
    ours = {each.type: each for each in status.types}
    return merged([{"name": type_, "messages": 0} for type_ in ours], ours, status)


OBSERVERS = {
    "status": _status,
    "pending": lambda reader: text.upcoming(next_jobs(reader, None, 20)),
    "pending of a type": lambda reader: text.upcoming(next_jobs(reader, ["pdf"], 20)),
    "a queue's length": lambda reader: reader.pending("pdf"),
    "explain": lambda reader: text.explanation(explain(reader, "task-first5")),
    "metrics": _metrics,
    "Flower's page": _page,
}


@pytest.fixture
def commands_of(server, redis_client):
    """Return a function that returns the commands that an observer sends, each as a list of words."""
    with redis.Redis.from_url(server.url) as client:

        def commands(observer):
            OBSERVERS[observer](Reader(client, Keys()))  # connects
            with redis_client.monitor() as monitor:
                OBSERVERS[observer](Reader(client, Keys()))
                client.echo("that is all")
                found = []
                while (command := monitor.next_command()["command"]) != "ECHO that is all":
                    found.append(command.split())
                return found

        yield commands


def publish(fleet, name, number):
    for each in range(number):
        fleet.publish(f"{name}{each}", ("pdf", "excel")[each % 2], priority=each // 2 % 3, on_demand=each % 4 < 2)


@pytest.mark.parametrize("observer", OBSERVERS)
def test_as_many_commands_are_sent_however_many_jobs_are_pending(observer, fleet, commands_of):
    fleet.join("one", "pdf", "excel", slots=2)
    publish(fleet, "first", 300)
    few = Counter(name for name, *_ in commands_of(observer))
    publish(fleet, "more", 3000)
    assert Counter(name for name, *_ in commands_of(observer)) == few


@pytest.mark.parametrize("observer", OBSERVERS)
def test_no_command_reads_all_of_what_may_be_much(observer, fleet, commands_of):
    fleet.join("one", "pdf", "excel", slots=2)
    publish(fleet, "first", 300)
    for number in range(MANY_TYPES):
        fleet.publish(f"other{number}", f"type{number}")
    for name, *words in commands_of(observer):
        if name == "TIME":
            continue
        kind = words[0].removeprefix(Keys().base).partition(":")[0]
        allowed = [names for kinds, names in SHORT.items() if kind in kinds.split("|")]
        assert allowed, f"{name} {words}: a key that no observer was known to read"
        assert name in allowed[0], f"{name} {words}"
        if name in ("HSCAN", "ZSCAN"):
            assert words[-2:] == ["COUNT", "100"], words
        elif name == "HMGET":
            assert len(words) <= 101, words
        elif kind == "lane" and name == "ZRANGE":
            assert 0 <= int(words[2]) < 20, words
        elif name == "ZRANGEBYSCORE":
            assert words[-3:-1] == ["LIMIT", "0"], words


def test_status_counts_every_job_of_very_many_lanes(fleet, redis_client):
    draw = random.Random(1)
    jobs = Counter()
    for number in range(2500):
        type_, on_demand = f"a type: {draw.randrange(MANY_TYPES)}", draw.random() < 0.5
        fleet.publish(f"job{number}", type_, priority=draw.randrange(3), on_demand=on_demand)
        jobs[type_, on_demand] += 1
    status = Report(Reader(redis_client, Keys())).status()
    found = {(each.type, mode): number for each in status.types for mode, number in _by_mode(each) if number}
    assert found == jobs
    assert [each.type for each in status.types] == sorted({type_ for type_, _ in jobs})


def _by_mode(each):
    return (True, each.on_demand), (False, each.pending - each.on_demand)


def test_the_held_jobs_of_very_many_workers_are_counted(fleet, redis_client):
    for number in range(450):
        fleet.join(f"worker{number:03}", "pdf", slots=1)
    for number in range(300):
        fleet.publish(f"job{number}", "pdf")
    status = Report(Reader(redis_client, Keys())).status()
    assert [each.name for each in status.workers] == [f"worker{number:03}@host" for number in range(450)]
    (pdf,) = status.types
    assert (pdf.claimed, pdf.pending, pdf.slots, pdf.free) == (300, 0, 450, 150)


# -- the order, without a score for each lane

heads = st.lists(
    st.tuples(
        st.integers(0, 400_000_000),
        st.sampled_from([f"id{number}" for number in range(40)]),
        st.sampled_from(["a", "b", "c", "unserved", "unserved too"]),
        st.sampled_from(["queued.0", "queued.5", "demand.0", "demand.9"]),
    ),
    max_size=40,
    unique_by=lambda head: head[2:],
)


@given(heads=heads, limit=st.integers(1, 12), by_age_alone=st.booleans(), turned=st.booleans())
def test_the_first_lanes_are_those_that_a_score_for_each_finds(heads, limit, by_age_alone, turned):
    lanes = [Lane(*head) for head in heads]
    rules = Order(300_000_000, Weights(turned=turned), {"a": 1, "b": 1, "c": 7}, by_age_alone)
    ranked = sorted(lanes, key=lambda lane: claim_order._rank(rules, lane, lane.enqueued_us, lane.job_id))
    found = claim_order._first(rules, lanes, limit)
    key = [claim_order._rank(rules, lane, lane.enqueued_us, lane.job_id) for lane in found]
    assert key == [claim_order._rank(rules, lane, lane.enqueued_us, lane.job_id) for lane in ranked[:limit]]


# -- numbers


@pytest.fixture
def lists(redis_client):
    with redis_client.pipeline() as pipe:
        for number in range(1500):
            pipe.rpush(f"ü:{number}", *"x" * (number % 7 + 1))
        pipe.execute()
    return [str(number) for number in range(1500)]


def of_pages(names, size):
    return (pipelined.of_each("LLEN", "ü:", names[first : first + size]) for first in range(0, len(names), size))


@pytest.mark.parametrize("size", [1, 22, 1000])
def test_each_command_gets_its_own_number(size, lists, redis_client):
    found = list(pipelined.numbers(redis_client, of_pages(lists, size)))
    assert [len(some) for some in found[:-1]] == [size] * (len(found) - 1)
    assert [number for some in found for number in some] == [number % 7 + 1 for number in range(1500)]
    assert list(pipelined.numbers(redis_client, [])) == []


def test_the_next_commands_are_made_while_the_server_is_at_work_and_no_more(lists, redis_client):
    made = []

    def commands():
        for page in of_pages(lists, 1):
            made.append(page)
            yield page

    for replied, _ in enumerate(pipelined.numbers(redis_client, commands()), 1):
        assert len(made) - replied < 400
        if replied < 1000:
            assert len(made) - replied >= 199, "the server has the next ones"


def test_an_error_among_the_replies_leaves_nothing_for_the_next_command(lists, redis_client):
    pages = [*of_pages(lists[:700], 22), pipelined.of_each("RENAME", "ü:", ["700"]), *of_pages(lists[701:], 22)]
    with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
        list(pipelined.numbers(redis_client, pages))
    assert redis_client.echo("mine") == b"mine"


def test_a_key_of_another_type_counts_nothing_and_hides_no_other(lists, redis_client):
    redis_client.set("ü:700", "no list")
    found = [number for some in pipelined.numbers(redis_client, of_pages(lists, 22)) for number in some]
    assert found == [0 if number == 700 else number % 7 + 1 for number in range(1500)]


def test_a_name_that_is_no_ascii_leaves_the_others_their_own_numbers(lists, redis_client):
    redis_client.rpush("ü:ü", *"abc")
    found = [number for some in pipelined.numbers(redis_client, of_pages(["ü", *lists[:50]], 10)) for number in some]
    assert found == [3, *(number % 7 + 1 for number in range(50))]


def test_who_stops_half_way_leaves_nothing_for_the_next_command(lists, redis_client):
    found = pipelined.numbers(redis_client, of_pages(lists, 22))
    assert next(found) == [number % 7 + 1 for number in range(22)]
    found.close()
    assert redis_client.echo("mine") == b"mine"


def test_a_pool_of_one_connection_is_enough(lists, server):
    pool = redis.ConnectionPool.from_url(server.url, max_connections=1)
    line = Line(pool)
    line.ping()
    assert sum(map(sum, pipelined.numbers(line, of_pages(lists, 22)))) == sum(number % 7 + 1 for number in range(1500))
    line.ping()
    line.close()


def test_a_check_of_health_takes_no_reply_of_a_command(lists, server):
    with redis.Redis.from_url(server.url, health_check_interval=1e-9) as client:
        found = [number for some in pipelined.numbers(client, of_pages(lists, 22)) for number in some]
    assert found == [number % 7 + 1 for number in range(1500)]
