"""A client that keeps its connection, when the server, a thread, or the process goes."""

import os
import signal
import threading

import pytest
import redis

from celery_affinity.broker.client import PersistentClient


@pytest.fixture
def pool(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url, max_connections=1, client_name="the-client")
    yield pool
    pool.disconnect()


def connections(redis_client):
    return [each["id"] for each in redis_client.client_list() if each["name"] == "the-client"]


def test_commands_go_on_one_connection_that_the_pool_lends_once(pool, redis_client):
    client = PersistentClient(pool)
    client.set("key", "value")
    (first,) = connections(redis_client)
    assert client.get("key") == b"value"
    assert connections(redis_client) == [first]
    assert len(pool._in_use_connections) == 1


def test_a_client_that_may_have_one_connection_does_with_one(pool):
    client = PersistentClient(pool)
    client.set("key", "value")
    with client.pipeline(transaction=False) as pipe:
        assert pipe.get("key").execute() == [b"value"]
    client.ping()
    client.give_back()
    assert redis.Redis(connection_pool=pool).get("key") == b"value"


def test_a_connection_that_the_server_closed_while_idle_is_opened_again(pool, redis_client):
    client = PersistentClient(pool)
    client.set("key", "value")
    (first,) = connections(redis_client)
    redis_client.client_kill_filter(_id=first)
    assert client.get("key") == b"value"


def test_a_refused_command_leaves_the_connection_as_it_is(pool, redis_client):
    client = PersistentClient(pool)
    client.set("key", "value")
    before = connections(redis_client)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.lpush("key", "value")
    assert client.get("key") == b"value"
    assert connections(redis_client) == before


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_signal_that_closes_the_connection_while_a_reply_is_awaited_ends_the_process(pool, end):
    """What `celery beat` does on SIGTERM: its handler releases the broker connection, in the middle of a publish."""
    client = PersistentClient(pool)

    def close_and_end(*_args):
        pool.disconnect()
        raise end

    before = signal.signal(signal.SIGALRM, close_and_end)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(end):
            client.blpop(["nothing"], timeout=20)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert client.ping()


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_a_signal_that_closes_the_connection_while_it_is_looked_at_ends_the_process(pool, monkeypatch, end):
    """redis-py with hiredis sets a timeout on the closed socket then, and raises the error of that."""
    client = PersistentClient(pool)
    client.set("key", "value")

    def can_read(*_args):
        try:
            try:
                raise end
            finally:
                raise OSError("closed")
        except OSError as exc:
            raise redis.ConnectionError from exc

    monkeypatch.setattr(client._persistent, "can_read", can_read)
    with pytest.raises(end):
        client.get("key")


def test_who_handles_the_end_of_a_process_may_send_commands(pool, redis_client):
    client = PersistentClient(pool)
    client.set("key", "value")
    try:
        raise SystemExit
    except SystemExit:
        redis_client.client_kill_filter(_type="normal", skipme=True)
        assert client.get("key") == b"value"


def test_a_reply_that_comes_too_late_is_none_to_the_next_command(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url, socket_timeout=0.2)
    client = PersistentClient(pool)
    client.set("key", "value")
    with pytest.raises(redis.TimeoutError):
        client.execute_command("BLPOP", "nothing", 1)
    assert client.get("key") == b"value"
    pool.disconnect()


def test_what_interrupts_a_command_leaves_no_reply_to_the_next(pool, monkeypatch):
    client = PersistentClient(pool)
    client.set("key", "value")
    connection = client._persistent

    def interrupted(*_, **__):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "read_response", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.get("key")
    assert connection._sock is None, "whether or not the reply is there by now"
    assert client.ping() is True


def test_a_second_thread_uses_another_connection(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url)
    client, waiting = (
        PersistentClient(pool),
        threading.Thread(target=lambda: client.execute_command("BLPOP", "list", 10)),
    )
    waiting.start()
    while not client._busy.locked():
        pass
    client.rpush("list", "value")  # this push is not behind the wait, but ends the wait
    waiting.join(5)
    assert not waiting.is_alive()
    pool.disconnect()


def test_a_forked_process_leaves_the_connection_to_its_parent(pool):
    client = PersistentClient(pool)
    own = client.client_id()
    child = os.fork()
    if not child:
        os._exit(client.client_id() == own)
    assert os.waitpid(child, 0)[1] == 0
    assert client.client_id() == own
