"""An observer sends a bounded number of short commands, regardless of the number of pending jobs."""

import random
from collections import Counter

import pytest
import redis

from celery_affinity.cli import explain_text
from celery_affinity.reports.explain import explain
from celery_affinity.reports.fleet_status import status_text
from celery_affinity.reports.flower import merge_flower_rows
from celery_affinity.reports.metrics import metrics_text, read_metrics
from celery_affinity.reports.queue_order import NEXT_JOBS, next_jobs
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import KEYS, Keys

from ..support.scripted_fleet import ScriptedFleet

pytestmark = pytest.mark.slow_on_redis

MANY_TYPES = 600  # one HSCAN reads a whole hash of up to 512 fields

#: Kind of key -> commands whose time does not depend on the number of jobs. It can depend on the number of workers.
SHORT = {
    "lane|kept_back|sublane": {"ZCARD", "ZCOUNT", "ZSCORE", "ZRANGE", "ZRANGEBYSCORE"},
    "held": {"ZCARD", "ZRANGE"},
    "waiting_keys": {"ZCARD", "ZRANGE"},
    "key_state": {"HGETALL"},  # the lanes for which jobs of the key wait
    "rates": {"ZSCORE"},
    "recurring": {"ZRANGE"},
    "recurring_call": {"HMGET"},
    "pauses|type_rules|minimum_heads": {"HSCAN", "HMGET"},
    "stop_orders": {"HGETALL"},  # at most `MAX_STOP_ORDERS`
    "type_running": {"ZCARD"},
    "kept_lanes|heads|capacity|profiles|free_slots|slots|members|durations": {"HSCAN", "HMGET", "HGET"},
    "batched|waiting_calls": {"HSCAN"},
    "metrics": {"HGETALL", "HLEN"},
    "trend|history": {"LRANGE"},
    "requeues": {"LRANGE"},  # at most `MAX_REQUEUES`
    "scheduled|dead": {"ZCARD", "ZCOUNT"},
    "heartbeats": {"ZSCAN", "ZRANGE"},
    "serving": {"ZRANGE"},
    "due_times": {"EXISTS", "ZCOUNT"},
    "worker|job|settings|counters": {"HGETALL", "HGET", "HMGET"},
    "claims": {"HLEN", "HKEYS"},
    "task": {"GET"},
    "schema": {"GET"},
}


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


def _status(reader):
    return status_text(Report(reader).status())


def _metrics(reader):
    return metrics_text(read_metrics(reader))


def _page(reader):
    status = Report(reader).status()
    ours = {each.type: each for each in status.types}
    return merge_flower_rows([{"name": type_, "messages": 0} for type_ in ours], ours, status)


OBSERVERS = {
    "status": _status,
    "pending": lambda reader: NEXT_JOBS.text(next_jobs(reader, None, 20)),
    "pending of a type": lambda reader: NEXT_JOBS.text(next_jobs(reader, ["pdf"], 20)),
    "a queue's length": lambda reader: reader.pending("pdf"),
    "explain": lambda reader: explain_text.explanation_text(explain(reader, "task-first5")),
    "metrics": _metrics,
    "Flower's page": _page,
}


@pytest.fixture
def commands_of(server, redis_client):
    """Return a function that runs an observer and returns its commands, each as a list of words."""
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


def _kind(name):
    """Return the kind of a key: the entry of `KEYS` with the longest matching template."""
    parts = {kind: template.split("%s")[0] for kind, (template, *_) in KEYS.items()}
    return max((kind for kind, part in parts.items() if name.startswith(part)), key=lambda kind: len(parts[kind]))


def publish(fleet, name, number):
    """Publish jobs of two types. Every tenth job has a key with a limit of 1."""
    for each in range(number):
        if each % 10 == 9:
            fleet.publish(f"keyed-{name}{each}!", ("pdf", "excel")[each % 2], rules="key=city%3AHH limit=1")
        fleet.publish(f"{name}{each}", ("pdf", "excel")[each % 2], priority=each // 2 % 3, on_demand=each % 4 < 2)


@pytest.mark.parametrize("observer", OBSERVERS)
def test_number_of_commands_is_independent_of_pending_jobs(observer, fleet, commands_of):
    fleet.join("one", "pdf", "excel", slots=2)
    publish(fleet, "first", 300)
    few = Counter(name for name, *_ in commands_of(observer))
    publish(fleet, "more", 3000)
    assert Counter(name for name, *_ in commands_of(observer)) == few


@pytest.mark.parametrize("observer", OBSERVERS)
def test_no_command_reads_an_unbounded_key(observer, fleet, commands_of):
    fleet.join("one", "pdf", "excel", slots=2)
    publish(fleet, "first", 300)
    for number in range(MANY_TYPES):
        fleet.publish(f"other{number}", f"type{number}")
    for name, *words in commands_of(observer):
        if name == "TIME":
            continue
        kind = _kind(words[0].removeprefix(Keys().base))
        allowed = [names for kinds, names in SHORT.items() if kind in kinds.split("|")]
        assert allowed, f"{name} {words}: a key that no observer was known to read"
        assert name in allowed[0], f"{name} {words}"
        if name in ("HSCAN", "ZSCAN"):
            assert words[-2:] == ["COUNT", "100"], words
        elif name == "HMGET":
            assert len(words) <= 101, words
        elif kind == "heartbeats":
            assert 0 <= int(words[2]) <= 100, words
        elif kind in ("lane", "kept_back", "key_queue", "held") and name == "ZRANGE":
            assert 0 <= int(words[2]) < 20, words
        elif name == "ZRANGEBYSCORE":
            assert words[-3:-1] == ["LIMIT", "0"], words


def test_status_counts_all_jobs_of_thousands_of_lanes(fleet, redis_client):
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


def test_status_counts_claimed_jobs_of_hundreds_of_workers(fleet, redis_client):
    for number in range(450):
        fleet.join(f"worker{number:03}", "pdf", slots=1)
    for number in range(300):
        fleet.publish(f"job{number}", "pdf")
    status = Report(Reader(redis_client, Keys())).status()
    assert [each.name for each in status.workers] == [f"worker{number:03}@host" for number in range(450)]
    (pdf,) = status.types
    assert (pdf.claimed, pdf.pending, pdf.slots, pdf.free) == (300, 0, 450, 150)
