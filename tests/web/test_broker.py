"""The connections of the HTTP interface and of Flower's pages copy the app's connection, for every kind of broker."""

import pytest

from celery_affinity.reports import flower
from celery_affinity.web.broker import Broker

from ..support.apps import app_for

URLS = [
    "redis://one",
    "rediss://one",
    "sentinel://one;sentinel://two",
    "redis-cluster://one;redis-cluster://two",
    "redis+cluster://one",
    "rediss-cluster://one",
]


@pytest.fixture(params=URLS)
def app(request):
    with app_for(request.param, broker_transport_options={"master_name": "fleet"}) as app:
        yield app


def test_connections_have_the_apps_broker(app, monkeypatch):
    monkeypatch.setattr("kombu.Connection.ensure_connection", lambda connection, **_: connection)
    origin = app.connection_for_write()
    of_http = Broker(app)._pool().acquire()
    of_flower = flower._with_short_timeouts(app.connection_for_write())
    for connection in (of_http, of_flower):
        assert _scheme(connection) == _scheme(origin)
        assert connection.hostname == origin.hostname
        assert connection.transport.Channel is origin.transport.Channel
        assert connection.alt == origin.alt
        assert "socket_timeout" in connection.transport_options


def _scheme(connection):
    return connection.as_uri().partition("://")[0]
