"""A client with a dedicated connection, when the server, a thread or the process ends."""

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


def test_client_keeps_one_connection_of_its_pool(pool, redis_client):
    client = PersistentClient(pool)
    client.set("key", "value")
    (first,) = connections(redis_client)
    assert client.get("key") == b"value"
    assert connections(redis_client) == [first]
    assert len(pool._in_use_connections) == 1


def test_pool_of_one_connection_is_enough(pool):
    client = PersistentClient(pool)
    client.set("key", "value")
    with client.pipeline(transaction=False) as pipe:
        assert pipe.get("key").execute() == [b"value"]
    client.ping()
    client.give_back()
    assert redis.Redis(connection_pool=pool).get("key") == b"value"


def test_client_reconnects_after_server_closed_an_idle_connection(pool, redis_client):
    client = PersistentClient(pool)
    client.set("key", "value")
    (first,) = connections(redis_client)
    redis_client.client_kill_filter(_id=first)
    assert client.get("key") == b"value"


def test_refused_command_keeps_the_connection(pool, redis_client):
    client = PersistentClient(pool)
    client.set("key", "value")
    before = connections(redis_client)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.lpush("key", "value")
    assert client.get("key") == b"value"
    assert connections(redis_client) == before


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_signal_during_a_read_ends_the_process(pool, end):
    """On SIGTERM, the handler of `celery beat` releases the broker connection during a publish."""
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
def test_signal_during_a_connection_check_ends_the_process(pool, monkeypatch, end):
    """redis-py with hiredis then sets a timeout on the closed socket, which raises an OSError."""
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


def test_handler_of_system_exit_can_send_commands(pool, redis_client):
    client = PersistentClient(pool)
    client.set("key", "value")
    try:
        raise SystemExit
    except SystemExit:
        redis_client.client_kill_filter(_type="normal", skipme=True)
        assert client.get("key") == b"value"


def test_late_reply_is_not_read_by_the_next_command(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url, socket_timeout=0.2)
    client = PersistentClient(pool)
    client.set("key", "value")
    with pytest.raises(redis.TimeoutError):
        client.execute_command("BLPOP", "nothing", 1)
    assert client.get("key") == b"value"
    pool.disconnect()


def test_interrupted_command_leaves_no_reply_to_the_next(pool, monkeypatch):
    client = PersistentClient(pool)
    client.set("key", "value")
    connection = client._persistent

    def interrupted(*_, **__):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "read_response", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.get("key")
    assert connection._sock is None, "whether or not the reply has arrived"
    assert client.ping() is True


def test_second_thread_uses_another_connection(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url)
    client = PersistentClient(pool)
    waiting = threading.Thread(target=lambda: client.execute_command("BLPOP", "list", 10))
    waiting.start()
    while not client._busy.locked():
        pass
    client.rpush("list", "value")  # this push is not behind the wait, but ends the wait
    waiting.join(5)
    assert not waiting.is_alive()
    pool.disconnect()


def test_forked_process_leaves_the_connection_to_its_parent(pool):
    client = PersistentClient(pool)
    parents_id = client.client_id()
    child = os.fork()
    if not child:
        os._exit(client.client_id() == parents_id)
    assert os.waitpid(child, 0)[1] == 0
    assert client.client_id() == parents_id
