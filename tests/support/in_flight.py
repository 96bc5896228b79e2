"""A connection for commands in flight, named so that tests can find it at the server."""

import pytest
import redis

from celery_affinity.broker.inflight import InFlightCommands


@pytest.fixture
def in_flight(server, redis_client):
    pool = redis.ConnectionPool.from_url(server.url, socket_timeout=5, client_name="in-flight")
    in_flight = InFlightCommands(pool)
    yield in_flight
    in_flight.close()
    pool.disconnect()


def connections(redis_client):
    return [each["id"] for each in redis_client.client_list() if each["name"] == "in-flight"]
