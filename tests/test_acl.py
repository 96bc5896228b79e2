"""The users of the how-to on ACLs can do what they are for, and nothing else."""

import os
import re
import subprocess
import sys
import urllib.error

import pytest
import redis

from celery_affinity.keys import Keys
from celery_affinity.scheduler import Scheduler

from .clocked import Fleet
from .ledger import Ledger
from .test_cli import APP, affinity
from .test_docs import blocks
from .test_flower import Flower
from .workers import start_worker, wait_until


@pytest.fixture
def as_user(valkey, redis_client):
    """Create the page's users; return a function from a user's name to its URL."""
    redis_client.acl_log_reset()  # of what other tests tried on this server
    page = blocks("docs/how-to/acl.md")
    for name in page:
        redis_client.execute_command(*page[name].split())
    yield lambda name: re.sub("redis://", f"redis://{name}:PASSWORD@", valkey.url)
    for name in page:
        redis_client.acl_deluser(name)


def publish(url, **options):
    call = f"app.send_task('{APP}.pdf', ('job',), queue='pdf', ignore_result=True, **{options!r})"
    code = f"from {APP} import app; {call}"
    env = {**os.environ, "BROKER_URL": url, "LEDGER": os.devnull}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_producer_worker_and_observer_work_together(as_user, redis_client, tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    worker = start_worker(APP, as_user("worker"), ["pdf"], env={"LEDGER": str(ledger.path)})
    wait_until(lambda: redis_client.exists(Keys().key("beats")), 30, f"it joins\n{worker.log()}")
    run = publish(as_user("producer"))
    assert run.returncode == 0, run.stderr
    wait_until(lambda: ledger.ends()["job"] == 1, 20, f"it runs\n{worker.log()}")
    assert publish(as_user("producer"), countdown=60).returncode == 0
    worker.term()
    assert worker.wait(20) == 0
    assert publish(as_user("producer")).returncode == 0, "it waits, with nobody to take it"

    for words in (["status"], ["pending"], ["explain", "nobody"], ["settings"], ["dead", "list"]):
        looked = affinity(as_user("observer"), *words)
        assert looked.returncode == 0, looked.stderr
    assert "scheduled for later: 1" in affinity(as_user("observer"), "status").stdout
    refused = [(entry["username"], entry["object"], entry["reason"]) for entry in redis_client.acl_log()]
    assert not refused, f"somebody tried what it may not: {refused}"


def test_flower_works_with_the_rights_of_a_worker(as_user, redis_client):
    worker = start_worker(APP, as_user("worker"), ["pdf"], env={"LEDGER": os.devnull})
    worker.wait_ready(30)
    Fleet(Scheduler(redis_client, Keys())).publish("unserved", "drawing")
    flower = Flower(as_user("worker"))

    def lengths():
        try:
            return {name: row["messages"] for name, row in flower.lengths().items()}
        except urllib.error.HTTPError:  # it does not know the worker yet, and has no right to the list of `celery`
            return None

    assert wait_until(lengths, 60, "Flower asks for the queues of the worker") == {"drawing": 1, "pdf": 0}
    assert flower.metrics()[("unserved_jobs", "drawing")] == 1


def test_a_producer_cannot_read_messages_nor_purge_nor_set(as_user, redis_client):
    Fleet(Scheduler(redis_client, Keys())).publish("job", "pdf")
    with redis.Redis.from_url(as_user("producer")) as client:
        for forbidden in (
            lambda: client.get(Keys().key("message", "job")),
            lambda: client.lrange(Keys().key("inbox", "w"), 0, -1),
            lambda: Scheduler(client, Keys()).purge("pdf"),
            lambda: Scheduler(client, Keys()).configure({"age_weight": "1"}),
            client.flushall,
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                forbidden()


def test_an_observer_cannot_change_anything(as_user, redis_client):
    Fleet(Scheduler(redis_client, Keys())).publish("job", "pdf")
    before = {key: redis_client.dump(key) for key in redis_client.scan_iter()}
    with redis.Redis.from_url(as_user("observer")) as client:
        scheduler = Scheduler(client, Keys())
        for forbidden in (
            lambda: Fleet(scheduler).publish("other", "pdf"),
            lambda: scheduler.purge("pdf"),
            lambda: scheduler.drop(["job"]),
            lambda: client.delete(Keys().key("heads")),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                forbidden()
    assert affinity(as_user("observer"), "settings", "set", "age_weight", "1").returncode == 1
    assert before == {key: redis_client.dump(key) for key in redis_client.scan_iter()}


def test_a_missing_right_is_named(as_user, redis_client):
    redis_client.execute_command("ACL", "SETUSER", "producer", "-hset")
    run = publish(as_user("producer"))
    assert run.returncode == 1
    assert "the broker's user has no right to publish" in run.stderr
    assert "hset" in run.stderr
