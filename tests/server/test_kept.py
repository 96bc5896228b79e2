"""A client that keeps its connection: what becomes of it when the other end, a thread, or the process goes."""

import os
import threading

import pytest
import redis

from celery_affinity.server.connections.kept import Line


@pytest.fixture
def pool(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url, max_connections=1, client_name="the-line")
    yield pool
    pool.disconnect()


def connections(redis_client):
    return [each["id"] for each in redis_client.client_list() if each["name"] == "the-line"]


def test_commands_go_on_one_connection_that_the_pool_lends_once(pool, redis_client):
    line = Line(pool)
    line.set("key", "value")
    (first,) = connections(redis_client)
    assert line.get("key") == b"value"
    assert connections(redis_client) == [first]
    assert len(pool._in_use_connections) == 1


def test_a_client_that_may_have_one_connection_does_with_one(pool):
    line = Line(pool)
    line.set("key", "value")
    with line.pipeline(transaction=False) as pipe:
        assert pipe.get("key").execute() == [b"value"]
    line.ping()
    line.give_back()
    assert redis.Redis(connection_pool=pool).get("key") == b"value"


def test_a_connection_that_the_server_closed_while_idle_is_opened_again(pool, redis_client):
    line = Line(pool)
    line.set("key", "value")
    (first,) = connections(redis_client)
    redis_client.client_kill_filter(_id=first)
    assert line.get("key") == b"value"


def test_a_refused_command_leaves_the_connection_as_it_is(pool, redis_client):
    line = Line(pool)
    line.set("key", "value")
    before = connections(redis_client)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        line.lpush("key", "value")
    assert line.get("key") == b"value"
    assert connections(redis_client) == before


def test_a_reply_that_comes_too_late_is_none_to_the_next_command(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url, socket_timeout=0.2)
    line = Line(pool)
    line.set("key", "value")
    with pytest.raises(redis.TimeoutError):
        line.execute_command("BLPOP", "nothing", 1)
    assert line.get("key") == b"value"
    pool.disconnect()


def test_what_interrupts_a_command_leaves_no_reply_to_the_next(pool, monkeypatch):
    line = Line(pool)
    line.set("key", "value")
    connection = line._kept

    def interrupted(*_, **__):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "read_response", interrupted)
    with pytest.raises(KeyboardInterrupt):
        line.get("key")
    assert connection._sock is None, "whether or not the reply is there by now"
    assert line.ping() is True


def test_a_second_thread_uses_another_connection(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url)
    line, waiting = Line(pool), threading.Thread(target=lambda: line.execute_command("BLPOP", "list", 10))
    waiting.start()
    while not line._busy.locked():
        pass
    line.rpush("list", "value")  # not behind the wait, which it ends
    waiting.join(5)
    assert not waiting.is_alive()
    pool.disconnect()


def test_a_forked_process_leaves_the_connection_to_its_parent(pool):
    line = Line(pool)
    own = line.client_id()
    child = os.fork()
    if not child:
        os._exit(line.client_id() == own)
    assert os.waitpid(child, 0)[1] == 0
    assert line.client_id() == own
