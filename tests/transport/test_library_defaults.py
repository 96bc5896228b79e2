"""Timeouts do not depend on redis-py's defaults: version 8 waits 5 s for a reply, older versions wait forever."""

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


def test_timeouts_are_ours_or_the_users_for_any_redis_py(channel):
    options = channel.connection.client.transport_options
    reply_s, connect_s = options.get("socket_timeout", REPLY_TIMEOUT_S), options.get("socket_connect_timeout", 4)
    for client in (channel.client, channel.scheduler.client, channel.scheduler_of_its_own().client):
        client.ping()
        connection = take_connection(client.connection_pool)
        client.connection_pool.release(connection)
        assert connection.socket_connect_timeout == connect_s
        assert connection.socket_timeout in (reply_s, connect_s)  # kombu's asynchronous connection uses the latter
