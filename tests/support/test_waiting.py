"""`wait_until` goes on asking a server that closes the connection instead of answering."""

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_affinity.embedded import EmbeddedServer

from . import processes
from .processes import wait_until


@pytest.fixture
def own_server():
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def client(own_server):
    """A client that tries once, as the oldest redis-py does by default."""
    with redis.Redis.from_url(own_server.url, retry=Retry(NoBackoff(), 0)) as client:
        yield client


def test_a_poll_survives_the_connection_that_its_server_closes(own_server, client):
    asked = []

    def answers():
        asked.append(client.ping)
        if len(asked) == 3:
            own_server.start()
        return client.ping()

    assert client.ping()
    own_server.kill()
    assert wait_until(answers, 20, "the server is back")
    assert len(asked) >= 3


def test_a_poll_asks_once_more_after_a_process_stood_still(monkeypatch):
    clock = iter([0.0, 0.0, 99.0])
    monkeypatch.setattr(processes, "monotonic", lambda: next(clock))
    answers = iter([False, True])
    assert wait_until(lambda: next(answers), 20, "it is so")


def test_a_poll_says_in_the_end_that_its_server_was_away(own_server, client):
    own_server.kill()
    with pytest.raises(AssertionError, match="it answers") as failure:
        wait_until(client.ping, 0.1, "it answers")
    assert isinstance(failure.value.__cause__, redis.ConnectionError)
