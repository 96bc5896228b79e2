"""Hostile messages of stock producers do not stop a real worker, fill its memory or block the jobs behind them."""

import base64
import bz2
import json

import pytest

from celery_affinity.reports import dead_letters
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.from_outside import marked
from ..support.ledger import Ledger
from ..support.messages import wire
from ..support.processes import start_worker, wait_until

#: Size in bytes to which a body of less than 1 kB expands.
GROWN = 600_000_000


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


def peak_bytes(pid):
    """Return the peak memory of a process."""
    with open(f"/proc/{pid}/status") as lines:
        (line,) = [each for each in lines if each.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def with_properties(**properties):
    message = json.loads(wire("hostile", task=f"{APP}.pdf"))
    message["properties"] |= properties
    return json.dumps(message)


def with_body(body, content_type, encoding, headers):
    message = json.loads(wire("hostile"))
    message |= {"content-type": content_type, "content-encoding": encoding, "headers": headers}
    message["body"] = base64.b64encode(body).decode()
    return json.dumps(message)


@pytest.fixture
def worker(valkey, redis_client, ledger):
    found = start_worker(APP, valkey.url, ("pdf", "celery"), pool="threads", env={"LEDGER": str(ledger.path)})
    wait_until(lambda: Report(Reader(redis_client, Keys())).status().workers, 30, f"it joins\n{found.log()}")
    return found


def test_worker_ingests_messages_behind_messages_with_hostile_numbers(worker, redis_client, ledger, load_app):
    numbers = ("1E+999999999", "-1E+999999999", "NaN", "sNaN", "Infinity")
    hostile = [with_properties(priority=marked("decimal", each)) for each in numbers]
    hostile += [with_properties(correlation_id=marked("decimal", numbers[0]))]
    hostile += [
        wire("hostile", **{"task": f"{APP}.pdf", name: marked("decimal", numbers[0])})
        for name in ("id", "retries", "eta", "expires", "timelimit", "group_index", "task")
    ]
    for queue in ("pdf", "celery"):
        redis_client.lpush(queue, *hostile)
        good = json.loads(wire(f"behind-{queue}", task=f"{APP}.pdf", args=(f"behind-{queue}",)))
        redis_client.lpush(queue, json.dumps(good))
    wait_until(lambda: {"behind-pdf", "behind-celery"} <= set(ledger.ends()), 60, f"they run\n{worker.log()}")
    wait_until(lambda: not redis_client.exists("pdf", "celery"), 20, "the lists are empty")


def test_small_hostile_body_does_not_fill_a_workers_memory(worker, redis_client, ledger, load_app):
    body = bz2.compress(bytes(GROWN))
    assert len(body) < 1000
    before = peak_bytes(worker.pid)
    task, past = {"task": f"{APP}.pdf", "id": "hostile"}, "2001-01-01T00:00:00"
    hostile = [
        with_body(body, "application/data", "bz2", None),
        with_body(body, "application/data", "bz2", task),
        with_body(body, "application/json", "utf-8", {**task, "compression": "bzip2"}),
        with_body(body, "application/json", "utf-8", {"compression": "bzip2"}),
        with_body(body, "application/json", "utf-8", {**task, "compression": "bzip2", "expires": past}),
    ]
    for queue in ("pdf", "celery"):
        redis_client.lpush(queue, *hostile)
    redis_client.lpush("pdf", wire("good", task=f"{APP}.pdf", args=("behind",)))
    reader = Reader(redis_client, Keys())
    wait_until(lambda: "behind" in ledger.ends(), 60, f"it runs\n{worker.log()}")
    wait_until(
        lambda: len(dead_letters.find_letters(reader, dead_letters.LetterFilter())) >= 4,
        30,
        f"they are dead\n{worker.log()}",
    )
    wait_until(lambda: not redis_client.exists("pdf", "celery"), 20, "the lists are empty")
    assert peak_bytes(worker.pid) - before < 250_000_000
