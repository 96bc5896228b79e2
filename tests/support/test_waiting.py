"""`wait_until` continues to poll a server that closes the connection instead of replying."""

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
    """A client without retries, like the oldest redis-py by default."""
    with redis.Redis.from_url(own_server.url, retry=Retry(NoBackoff(), 0)) as client:
        yield client


def test_wait_until_survives_a_closed_connection(own_server, client):
    pings = []

    def answers():
        pings.append(client.ping)
        if len(pings) == 3:
            own_server.start()
        return client.ping()

    assert client.ping()
    own_server.kill()
    assert wait_until(answers, 20, "the server is back")
    assert len(pings) >= 3


def test_wait_until_polls_again_after_a_stalled_process(monkeypatch):
    clock = iter([0.0, 0.0, 99.0])
    monkeypatch.setattr(processes, "monotonic", lambda: next(clock))
    answers = iter([False, True])
    assert wait_until(lambda: next(answers), 20, "it is so")


def test_wait_until_raises_from_the_connection_error(own_server, client):
    own_server.kill()
    with pytest.raises(AssertionError, match="it answers") as failure:
        wait_until(client.ping, 0.1, "it answers")
    assert isinstance(failure.value.__cause__, redis.ConnectionError)
