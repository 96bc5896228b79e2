"""The defaults of redis-py do not count: version 8 waits 5 s for a reply, older ones wait for ever."""

import pytest
from celery import Celery

from celery_affinity.broker.client import take_connection
from celery_affinity.transport.connections import REPLY_TIMEOUT_S


@pytest.fixture(params=[{}, {"socket_timeout": 3.0, "socket_connect_timeout": 2.0}], ids=["our defaults", "the user's"])
def channel(request, valkey, redis_client):
    with Celery("shop", broker=valkey.url, set_as_current=False) as app:
        app.conf.update(broker_transport="celery_affinity:Transport", broker_transport_options=request.param)
        with app.connection_for_write() as connection:
            yield connection.default_channel


def test_the_longest_waits_are_ours_or_the_users_whatever_redis_py_says(channel):
    said = channel.connection.client.transport_options
    wanted = (said.get("socket_timeout", REPLY_TIMEOUT_S), said.get("socket_connect_timeout", 4))
    clients = [channel.client, channel.scheduler.client, channel.scheduler_of_its_own().client]
    for client in clients:
        client.ping()
        pool = client.connection_pool
        connection = take_connection(pool)
        found = (connection.socket_timeout, connection.socket_connect_timeout)
        pool.release(connection)
        assert found[1] == wanted[1]
        assert found[0] in (
            wanted[0],
            wanted[1],
        )  # an asynchronous connection, that of kombu, is opened with the latter
