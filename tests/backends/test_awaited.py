"""`aresult` awaits results of real workers, on each Redis result backend, also after its connection was lost."""

import asyncio
import os
import threading
import time
from contextlib import contextmanager

import pytest
import redis
from celery import Celery, chain, exceptions, group, states
from celery.result import GroupResult

from celery_affinity import SettingError, aresult
from celery_affinity.backends import awaited
from celery_affinity.embedded import EmbeddedServer
from celery_affinity.embedded.server import free_port

from ..support.certificates import tls_server
from ..support.sentinel import Sentinel
from ..support.servers import needs_tls

# Celery calls it.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

#: Max seconds to wait for results.
WAIT_S = 30


@pytest.fixture(autouse=True)
def rare_periodic_reads(request, monkeypatch):
    """Leave the results to messages, and to the reads after a subscription. Nodes of a cluster can lose messages."""
    if "cluster" not in request.fixturenames:
        monkeypatch.setattr(awaited, "LOOK_S", 2.0 * WAIT_S)


@contextmanager
def app_at(url, **conf):
    app = Celery("results", backend=url, set_as_current=False, **conf)
    try:
        yield app
    finally:
        app.backend.result_consumer.stop()
        app.backend.client.connection_pool.disconnect()
        app.close()


@pytest.fixture
def app(valkey, redis_client):
    with app_at(valkey.url) as app:
        yield app


def subscribed(client):
    """Return the number of subscriptions to results, of all clients."""
    channels = client.pubsub_channels("*celery-task-meta-*")
    return sum(number for _, number in client.pubsub_numsub(*channels))


async def until(condition):
    """Wait in the event loop until *condition* is true."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


def store(app, *ids, result="done", state=states.SUCCESS):
    for id_ in ids:
        app.backend.store_result(id_, result, state)


# -- results of real workers


def test_aresult_returns_and_raises_the_same_as_get(fleet):
    fleet.start("one", "pdf", pool="threads", concurrency=4)
    pdf, fail = fleet.tasks["pdf"], fleet.tasks["fail"]

    async def wait():
        assert await aresult(pdf.delay("first"), timeout=WAIT_S) == "first"
        with pytest.raises(ValueError, match="broken"):
            await aresult(fail.delay("broken"), timeout=WAIT_S)
        assert isinstance(await aresult(fail.delay("kept"), timeout=WAIT_S, propagate=False), ValueError)
        both = group(pdf.s("left", 0.2), group([pdf.s("inner")]), pdf.s("right")).apply_async()
        assert await aresult(both, timeout=WAIT_S) == ["left", "inner", "right"]
        nested = GroupResult("outer", [both, pdf.delay("last")])
        assert await aresult(nested, timeout=WAIT_S) == [["left", "inner", "right"], "last"]
        with pytest.raises(ValueError, match="one of two"):
            await aresult(group(pdf.s("slow", 60), fail.s("one of two")).apply_async(), timeout=WAIT_S)
        with pytest.raises(ValueError, match="parent"):
            await aresult(chain(fail.si("parent"), pdf.si("child")).apply_async(), timeout=WAIT_S)
        revoked = pdf.apply_async(("never",), countdown=600)
        fleet.app.control.revoke(revoked.id)
        with pytest.raises(exceptions.TaskRevokedError):
            await aresult(revoked, timeout=WAIT_S)
        with pytest.raises(TimeoutError) as caught:
            await aresult(pdf.delay("late", 60), timeout=0.2)
        assert isinstance(caught.value, exceptions.TimeoutError)

    asyncio.run(wait())


def test_parents_failure_ends_the_wait_for_its_child(app):
    async def wait():
        child = app.AsyncResult("child", parent=app.AsyncResult("parent"))
        waiting = asyncio.create_task(aresult(child, timeout=WAIT_S))
        await until(lambda: subscribed(app.backend.client) == 2)
        store(app, "parent", result=ValueError("first"), state=states.FAILURE)
        with pytest.raises(ValueError, match="first"):
            await waiting

    asyncio.run(wait())


def test_waiting_within_a_task_is_refused_like_get(app):
    from celery.result import denied_join_result

    with denied_join_result(), pytest.raises(RuntimeError, match=r"Never call result.get\(\) within a task"):
        asyncio.run(aresult(app.AsyncResult("x")))


# -- many waiters


def test_thousand_waiters_share_one_subscription_without_threads(app, valkey):
    ids = [f"task-{number}" for number in range(1000)]
    store(app, *ids[:100])  # ready before the wait

    async def wait():
        threads, client = threading.active_count(), app.backend.client
        waits = [asyncio.create_task(aresult(app.AsyncResult(id_), timeout=WAIT_S)) for id_ in ids]
        await until(lambda: subscribed(client) == 900)
        assert threading.active_count() == threads
        assert [int(each["sub"]) for each in client.client_list() if int(each["sub"])] == [900]
        storing = threading.Thread(target=store, args=(app, *ids[100:]))
        storing.start()
        assert await asyncio.gather(*waits) == ["done"] * 1000
        storing.join()
        await until(lambda: subscribed(client) == 0)
        assert len(awaited._listeners) == 1

    asyncio.run(wait())
    assert awaited._listeners == {}, "the end of the event loop ends the listener"


def test_calls_of_an_app_with_awaited_results_leave_no_subscription(app):
    async def wait():
        store(app, "first")
        assert await aresult(app.AsyncResult("first"), timeout=WAIT_S) == "done"
        app.backend.on_task_call(None, "second")
        assert app.backend.result_consumer.subscribed_to == set()

    asyncio.run(wait())
    threading.Timer(0.2, store, (app, "second")).start()
    assert app.AsyncResult("second").get(timeout=WAIT_S) == "done"


def test_cancelled_wait_unsubscribes_and_other_waiters_continue(app):
    async def wait():
        first, second = (asyncio.create_task(aresult(app.AsyncResult("shared"), timeout=WAIT_S)) for _ in range(2))
        other = asyncio.create_task(aresult(app.AsyncResult("other"), timeout=WAIT_S))
        await until(lambda: subscribed(app.backend.client) == 2)
        for each in (first, other):
            each.cancel()
        await until(lambda: subscribed(app.backend.client) == 1)
        store(app, "shared")
        assert await second == "done"
        assert first.cancelled()
        assert other.cancelled()

    asyncio.run(wait())


def test_event_loops_of_threads_and_forked_processes_wait_separately(app):
    def wait_in_a_new_loop():
        return asyncio.run(aresult(app.AsyncResult("shared"), timeout=WAIT_S))

    async def wait():
        waiting = asyncio.create_task(aresult(app.AsyncResult("shared"), timeout=WAIT_S))
        await until(lambda: subscribed(app.backend.client) == 1)
        child = os.fork()
        if not child:
            os._exit(0 if wait_in_a_new_loop() == "done" else 1)
        in_thread = asyncio.create_task(asyncio.to_thread(wait_in_a_new_loop))
        await until(lambda: subscribed(app.backend.client) == 3)
        store(app, "shared")
        assert (await waiting, await in_thread) == ("done", "done")
        assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, child, 0))[1]) == 0

    asyncio.run(wait())


# -- lost connections


def test_waiters_recover_when_their_connections_are_killed(app):
    async def wait():
        client, ids = app.backend.client, [f"task-{number}" for number in range(20)]
        waits = [asyncio.create_task(aresult(app.AsyncResult(id_), timeout=WAIT_S)) for id_ in ids]
        for round_ in range(3):
            remaining = 20 - round_
            await until(lambda remaining=remaining: subscribed(client) == remaining)
            for kind in ("pubsub", "normal"):
                client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
            store(app, ids[round_])  # while no one is subscribed
            assert await waits[round_] == "done"
        await until(lambda: subscribed(client) == 17)
        store(app, *ids)
        assert await asyncio.gather(*waits) == ["done"] * 20

    asyncio.run(wait())


def test_waiters_recover_after_a_restart_of_the_server(tmp_path):
    async def wait(server, app):
        waiting = asyncio.create_task(aresult(app.AsyncResult("x"), timeout=WAIT_S))
        await until(lambda: subscribed(app.backend.client) == 1)
        server.kill()
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(store, app, "x")
        assert await waiting == "done"

    with EmbeddedServer(port=free_port(), directory=tmp_path) as server, app_at(server.url) as app:
        asyncio.run(wait(server, app))


def test_lost_message_is_found_by_the_periodic_read(app, monkeypatch):
    monkeypatch.setattr(awaited, "LOOK_S", 0.2)

    async def wait():
        waiting = asyncio.create_task(aresult(app.AsyncResult("silent"), timeout=WAIT_S))
        await until(lambda: subscribed(app.backend.client) == 1)
        meta = app.backend._get_result_meta("silent result", states.SUCCESS, None, None)
        payload = app.backend.encode({**meta, "task_id": "silent"})
        app.backend.client.set(app.backend.get_key_for_task("silent"), payload)
        assert await waiting == "silent result"

    asyncio.run(wait())


def test_idle_listener_closes_its_connections_and_starts_again(app, monkeypatch):
    monkeypatch.setattr(awaited, "IDLE_S", 0.0)
    monkeypatch.setattr(awaited, "LOOK_S", 0.05)

    async def wait():
        for id_ in ("first", "second"):
            store(app, id_)
            assert await aresult(app.AsyncResult(id_), timeout=WAIT_S) == "done"
            await until(lambda: awaited._listeners == {})
            connections = [each for each in app.backend.client.client_list() if each["cmd"].startswith("subscribe")]
            assert connections == []

    asyncio.run(wait())


def test_unreachable_server_raises_after_the_retry_policy():
    policy = {"max_retries": 2, "interval_start": 0, "interval_step": 0}
    with app_at(f"redis://127.0.0.1:{free_port()}", result_backend_transport_options={"retry_policy": policy}) as app:
        with pytest.raises(redis.ConnectionError):
            asyncio.run(aresult(app.AsyncResult("x"), timeout=WAIT_S))
        with pytest.raises(TimeoutError):
            asyncio.run(aresult(app.AsyncResult("x"), timeout=0))


def test_refused_login_raises_without_retries(tmp_path):
    with EmbeddedServer(password="right") as server, app_at(server.url.replace("right", "wrong")) as app:
        began = time.monotonic()
        with pytest.raises(redis.AuthenticationError):
            asyncio.run(aresult(app.AsyncResult("x"), timeout=WAIT_S))
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("url", ["cache+memory://", "rpc://", None])
def test_other_backend_raises_an_error_that_names_the_accepted_ones(url):
    app = Celery("results", backend=url, set_as_current=False)
    with pytest.raises(SettingError, match="redis://, rediss://, socket://, sentinel://, redis-cluster://"):
        asyncio.run(aresult(app.AsyncResult("x")))


# -- Sentinel, TLS, cluster


async def waits_and_recovers(app, client):
    """Wait for two results, the second one through a lost connection."""
    store(app, "ready")
    assert await aresult(app.AsyncResult("ready"), timeout=WAIT_S) == "done"
    waiting = asyncio.create_task(aresult(app.AsyncResult("later"), timeout=WAIT_S))
    await until(lambda: subscribed(client) == 1)
    client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    await asyncio.to_thread(store, app, "later")
    assert await waiting == "done"


def test_results_arrive_through_sentinel(tmp_path):
    with EmbeddedServer() as primary:
        config = tmp_path / "sentinel.conf"
        config.write_text(f"sentinel monitor main 127.0.0.1 {primary.port} 1\n")
        options = {"master_name": "main"}
        with (
            Sentinel(free_port(), config) as sentinel,
            app_at(sentinel.url, result_backend_transport_options=options) as app,
        ):
            asyncio.run(waits_and_recovers(app, app.backend.client))


@needs_tls
def test_results_arrive_through_tls(tmp_path):
    with tls_server(tmp_path) as (server, url):
        url += f"?ssl_ca_certs={tmp_path / 'ca.pem'}&ssl_cert_reqs=required"
        with app_at(url) as app, redis.Redis.from_url(server.url) as client:
            asyncio.run(waits_and_recovers(app, client))


def test_results_of_a_cluster_arrive_after_a_failover(cluster):
    async def wait(app):
        store(app, "ready")
        assert await aresult(app.AsyncResult("ready"), timeout=WAIT_S) == "done"
        waits = [asyncio.create_task(aresult(app.AsyncResult(id_), timeout=WAIT_S)) for id_ in ("one", "two")]
        owner = cluster.owner_of(app.backend.tag)
        await until(lambda: subscribed(app.backend.client) == 2)
        owner.kill()
        try:
            await asyncio.to_thread(store, app, "one", "two")
            assert await asyncio.gather(*waits) == ["done", "done"]
        finally:
            await asyncio.to_thread(cluster.revive, owner)

    with app_at(cluster.url) as app:
        asyncio.run(wait(app))
