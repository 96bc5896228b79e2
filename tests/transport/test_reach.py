"""`scheduler_of` connects an app to its scheduler: the time spent on attempts, and the refusals."""

import ast
import socket
from pathlib import Path
from time import monotonic

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

import celery_affinity
from celery_affinity import TransportError, explain
from celery_affinity.transport.app_api import scheduler_of


@pytest.fixture
def new_app():
    """Return a function that makes an app on a URL."""
    apps = []

    def make(url, broker_transport="celery_affinity:Transport"):
        apps.append(Celery(broker=url, set_as_current=False))
        apps[-1].conf.broker_transport = broker_transport
        return apps[-1]

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def free():
    """Return the URL of a port that nothing listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{taken.getsockname()[1]}/0"


def test_last_server_of_a_failover_list_is_reached(valkey, free, new_app):
    with scheduler_of(new_app(f"{free};{free};{valkey.url}")) as scheduler:
        assert scheduler.reader.now_us()


def test_refusing_broker_raises_without_a_pause(free, new_app):
    began = monotonic()
    with pytest.raises(OperationalError):
        explain(new_app(free), "some task")
    assert monotonic() - began < 1.5, "kombu would pause for 2 s before its next attempt"


def test_app_with_another_transport_is_refused(valkey, new_app):
    app = new_app(valkey.url, broker_transport=None)
    with pytest.raises(TransportError, match="must be 'celery_affinity:Transport', got: None"):
        explain(app, "some task")


#: Attributes that open a connection or return an open one with kombu's retry policy.
OPENS = {"autoretry", "connect", "connection_or_acquire", "default_channel", "ensure_connection"}

#: Packages that open connections themselves: publishers and workers retry by Celery's settings, and `backends` and
#: `embedded` do not use kombu's connections.
OTHER_WAYS = {"backends", "embedded", "transport", "worker"}


def opens(source):
    """Return the names of `OPENS` that *source* reads from a kombu connection."""
    attributes = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    return attributes & OPENS - {"connect"} | {
        "connect"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "connect"
        if not (node.args or node.keywords)  # a signal's handler is an argument
    }


@pytest.mark.parametrize(
    "source",
    [
        "connection.ensure_connection(max_retries=1)",
        "with app.connection_or_acquire() as connection: pass",
        "channel = connection.default_channel",
        "connection.connect()",
    ],
)
def test_opens_finds_every_way_to_connect(source):
    assert opens(source)
    assert not opens("reach.connect(connection); task_sent.connect(handler); app.connection_for_write()")


def test_reports_connect_only_through_scheduler_of():
    package = Path(celery_affinity.__file__).parent
    ways = {}
    for file in package.rglob("*.py"):
        path = file.relative_to(package)
        if path.parts[0] not in OTHER_WAYS and (names := opens(file.read_text())):
            ways[str(path)] = names
    assert ways == {}
