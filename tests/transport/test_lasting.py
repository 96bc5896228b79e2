"""Transient server errors on each kind of channel connection."""

import pytest
import redis

from celery_affinity.broker.client import take_connection
from celery_affinity.broker.inflight import InFlightCommands
from celery_affinity.scheduler import server_info
from celery_affinity.transport.transport import Transport

from ..support.apps import app_for
from ..support.passing_errors import PASSING, REFUSES_WRITES


@pytest.fixture
def channel(proxy, redis_client):
    app = app_for(proxy.url)
    with app.connection_for_write() as connection:
        yield connection.default_channel


def _blocking_pop(channel):
    channel.client.connection = channel.client.connection or take_connection(channel.client.connection_pool)
    channel.client.connection.send_command("ECHO", "x")
    return channel.client.parse_response(channel.client.connection, "ECHO")


def _subscription(channel):
    with channel.client.pubsub() as subscription:  # like `subclient`
        subscription.subscribe("x")
        # `parse_response` connects and subscribes again before it raises.
        return subscription.connection.read_response(push_request=True)


def _kombus_commands(channel):
    with channel.conn_or_acquire() as client:
        return client.echo("x")


def _a_pipeline(channel):
    with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
        return pipe.ping().echo("x").ping().execute()


def _server_functions(channel):
    return channel.scheduler.client.echo("x")


def _workers_server_functions(channel):
    return channel.scheduler_of_its_own().client.echo("x")


def _in_flight(channel):
    in_flight = channel.in_flight_of_its_own()
    assert isinstance(in_flight, InFlightCommands)
    in_flight.send([("ECHO", "x"), ("PING",)])
    return in_flight.receive()


COMMANDS = (
    *(_blocking_pop, _subscription, _kombus_commands, _a_pipeline),
    *(_server_functions, _workers_server_functions, _in_flight),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_transient_error_is_a_lost_connection_for_every_command(channel, proxy, command):
    for error in PASSING:
        proxy.refused["SUBSCRIBE" if command is _subscription else "ECHO"] = error
        with pytest.raises(redis.ConnectionError):
            command(channel)
        assert proxy.refused == {}
    assert command(channel), "the next connection works"


def test_transient_error_is_retried_when_a_channel_opens(proxy, redis_client):
    for error in (*PASSING, *REFUSES_WRITES):
        app = app_for(proxy.url)
        with app.connection_for_write() as connection:
            proxy.refused["PING"] = error
            connection.ensure_connection(max_retries=1, interval_start=0)  # another error would be raised immediately
            assert proxy.refused == {}, error


@pytest.mark.parametrize("error", REFUSES_WRITES)
def test_refused_write_reconnects_readers_and_raises_for_publishers(channel, proxy, error):
    proxy.refused["ECHO"] = error
    with pytest.raises(redis.ConnectionError):
        _blocking_pop(channel)
    for command in (_kombus_commands, _server_functions):
        proxy.refused["ECHO"] = error
        with pytest.raises(redis.ResponseError, match=error.partition(" ")[2][:20]):
            command(channel)


@pytest.mark.parametrize("error", REFUSES_WRITES)
def test_refused_write_reconnects_a_workers_kombu_commands(channel, proxy, error, monkeypatch):
    monkeypatch.setattr(Transport, "on_revoked", lambda revoked: None)
    proxy.refused["ECHO"] = error
    with pytest.raises(redis.ConnectionError):
        _kombus_commands(channel)


@pytest.mark.parametrize("error", REFUSES_WRITES)
def test_schema_number_is_written_after_a_refused_write(channel, proxy, redis_client, error):
    scheduler = channel.scheduler
    redis_client.delete(scheduler.keys.key("schema"))
    proxy.refused["SET"] = error
    server_info.check_schema(scheduler.client, scheduler.keys)
    assert proxy.refused == {}


def test_error_inside_a_transaction_reply_is_a_lost_connection(server, channel, redis_client):
    """The server refuses the script when it executes the transaction, so the transaction's reply contains the error."""
    redis_client.replicaof("127.0.0.1", 1)
    try:
        with pytest.raises(redis.ConnectionError), channel.conn_or_acquire() as client, client.pipeline() as pipe:
            pipe.eval("return redis.call('SET', KEYS[1], 1)", 1, "x").execute()
    finally:
        redis_client.replicaof("NO", "ONE")
