"""Messages of stock producers that would stop a real worker, or fill its memory: it takes the jobs behind them."""

import base64
import bz2
import json

import pytest

from celery_affinity.observe import dead_letters
from celery_affinity.observe.status import Report
from celery_affinity.rules.redis_keys import Keys
from celery_affinity.server.reader import Reader

from ..support.apps import APP
from ..support.from_outside import marked
from ..support.ledger import Ledger
from ..support.messages import wire
from ..support.processes import start_worker, wait_until

#: Bytes that a body of less than 1 kB becomes.
GROWN = 600_000_000


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


def peak_bytes(pid):
    """Return the most memory that a process has had."""
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


def test_a_worker_drains_a_list_behind_messages_with_hostile_numbers(worker, redis_client, ledger, load_app):
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


def test_a_small_body_takes_no_memory_of_a_worker(worker, redis_client, ledger, load_app):
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
        lambda: len(dead_letters.find(reader, dead_letters.LetterFilter())) >= 4, 30, f"they are dead\n{worker.log()}"
    )
    wait_until(lambda: not redis_client.exists("pdf", "celery"), 20, "the lists are empty")
    assert peak_bytes(worker.pid) - before < 250_000_000
