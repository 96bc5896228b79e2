"""An ordinary app keeps its behaviour after the change of one setting."""

import sys
from datetime import UTC, datetime, timedelta

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError

from celery_affinity.schema.keys import Keys

from ..support.processes import Process, start_worker, wait_until, wait_until_it_listens

APP = "tests.support.apps.ordinary"


@pytest.fixture(params=["prefork", "threads", "solo"])
def app(request, valkey, redis_client, load_app):
    """The app, with one worker started without ``-Q``."""
    app = load_app(APP)
    worker = start_worker(APP, valkey.url, (), name="ordinary", pool=request.param, concurrency=2)
    worker.wait_ready(30)
    app.pool_name = request.param
    return app


@pytest.fixture
def tasks(app):
    return {name.rpartition(".")[2]: task for name, task in app.tasks.items() if name.startswith(APP)}


def test_canvas_primitives_return_their_results(tasks):
    add, total = tasks["add"], tasks["total"]
    assert chain(add.s(1, 2), add.s(3), add.s(4))().get(timeout=10) == 10
    assert group(add.s(n, n) for n in range(5))().get(timeout=10) == [0, 2, 4, 6, 8]
    assert chord([add.s(n, 1) for n in range(5)])(total.s()).get(timeout=10) == 15
    nested = chain(add.s(1, 1), group(add.s(n) for n in range(3)), total.s(), add.s(100))
    assert nested().get(timeout=10) == 109
    assert add.starmap([(1, 2), (3, 4)]).delay().get(timeout=10) == [3, 7]
    assert add.chunks(zip(range(6), range(6), strict=True), 2).group()().get(timeout=10) == [[0, 2], [4, 6], [8, 10]]


def test_callbacks_and_errbacks_run(app, tasks):
    client = app.backend.client
    tasks["add"].apply_async((1, 2), link=tasks["remember"].s("linked"))
    tasks["fail"].apply_async(("broken",), link_error=tasks["remember"].si("error", "failed"))
    wait_until(lambda: client.llen("linked") and client.llen("failed"), 10, "both callbacks ran")
    assert client.lrange("linked", 0, -1) == [b"3"]
    # Celery raises the error of the part or of the chord, whichever it finds first.
    with pytest.raises((ValueError, ChordError), match="in the chord"):
        chord([tasks["add"].s(1, 1), tasks["fail"].s("in the chord")])(tasks["total"].s()).get(timeout=10)


def test_retries_return_the_final_result(tasks):
    assert tasks["third_time_lucky"].delay().get(timeout=15) == 2
    assert tasks["autoretried"].delay().get(timeout=15) == 1


def test_calls_with_due_times_return_their_results(app, tasks):
    add, total = tasks["add"], tasks["total"]
    assert chain(add.s(1, 2), add.s(3)).apply_async(deadline=60).get(timeout=10) == 6
    assert chord([add.s(n, 1) for n in range(3)])(total.s(), deadline=60).get(timeout=10) == 6
    assert group(add.s(n, n) for n in range(3)).apply_async(start_within=60).get(timeout=10) == [0, 2, 4]
    assert tasks["third_time_lucky"].apply_async(start_within=60).get(timeout=15) == 2
    assert add.apply_async((1, 1), countdown=0.5, start_within=5).get(timeout=10) == 2
    revoked = add.apply_async((1, 1), countdown=60, deadline=90)
    revoked.revoke()
    with pytest.raises(TaskRevokedError):
        revoked.get(timeout=10)
    chain(add.s(1, 1).set(queue="nobody"), add.s(1)).apply_async(deadline=90)
    assert app.backend.client.zcard(Keys().key("due_times")) == 1, "only this call waits"
    with app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge("nobody") == 1
    assert app.backend.client.exists(Keys().key("due_times")) == 0


def test_eta_expiry_and_revoke_apply(tasks):
    before = datetime.now(UTC)
    tasks["add"].apply_async((1, 1), eta=before + timedelta(seconds=1)).get(timeout=10)
    assert datetime.now(UTC) - before >= timedelta(seconds=1)
    with pytest.raises(TaskRevokedError):
        tasks["add"].apply_async((1, 1), expires=-1).get(timeout=10)
    revoked = tasks["add"].apply_async((1, 1), countdown=1)
    revoked.revoke()
    with pytest.raises(TaskRevokedError):
        revoked.get(timeout=10)


def test_remote_control_reaches_the_worker(app, tasks):
    wait_until_it_listens(app, "ordinary")
    inspect = app.control.inspect(timeout=10, limit=1)
    (reply,) = inspect.ping().values()
    assert reply == {"ok": "pong"}
    (registered,) = inspect.registered().values()
    assert "tests.support.apps.ordinary.add" in registered
    (stats,) = inspect.stats().values()
    assert stats["affinity"]["slots"] == (1 if app.pool_name == "solo" else 2)
    (queues,) = inspect.active_queues().values()
    assert [queue["name"] for queue in queues] == ["celery"]
    if app.pool_name != "solo":
        running = tasks["sleep"].delay(3)
        wait_until(lambda: any(inspect.active().values()), 10, "it is reported as running")
        assert running.get(timeout=10) == 3
    app.control.add_consumer("extra", reply=True, timeout=10, limit=1)
    assert tasks["add"].apply_async((2, 2), queue="extra").get(timeout=10) == 4
    app.control.cancel_consumer("extra", reply=True, timeout=10, limit=1)
    left = tasks["add"].apply_async((2, 2), queue="extra")
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        wait_until(lambda: channel._size("extra") == 1, 5, "it waits for a worker")
        assert channel.queue_purge("extra") == 1
        assert channel._size("extra") == 0
    assert left.state == "PENDING"


def test_beat_publishes_periodic_tasks(app, valkey):
    client = app.backend.client
    client.delete("ticks")
    words = ["-s", "/dev/null/none", "--max-interval", "1", "-S", "celery.beat:Scheduler"]
    command = [sys.executable, "-m", "celery", "-A", APP, "beat", *words]
    beat = Process("beat", command, {"BROKER_URL": valkey.url})
    wait_until(lambda: int(client.get("ticks") or 0) >= 2, 60, f"beat's task ran twice\n{beat.log()}")
