"""The way from an app to a scheduler: the time spent on tries, and the refusals."""

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


def test_the_last_server_of_a_failover_list_is_reached(valkey, free, new_app):
    with scheduler_of(new_app(f"{free};{free};{valkey.url}")) as scheduler:
        assert scheduler.reader.now_us()


def test_a_broker_that_refuses_connections_is_not_waited_for(free, new_app):
    began = monotonic()
    with pytest.raises(OperationalError):
        explain(new_app(free), "some task")
    assert monotonic() - began < 1.5, "kombu alone would pause for 2 s before its next try"


def test_another_transport_is_refused(valkey, new_app):
    app = new_app(valkey.url, broker_transport=None)
    with pytest.raises(TransportError, match="must be 'celery_affinity:Transport', got: None"):
        explain(app, "some task")


#: What opens a connection, or gives one that was opened, by kombu's patience or another one.
OPENS = {"autoretry", "connect", "connection_or_acquire", "default_channel", "ensure_connection"}

#: The rooms with a way of their own: publishers and workers retry by Celery's settings. `embedded` and `guard` know
#: no kombu.
OTHER_WAYS = {"client", "embedded", "guard", "transport", "worker"}


def opens(source):
    """Return the names of `OPENS` that *source* asks a connection of kombu's for."""
    asked = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    return asked & OPENS - {"connect"} | {
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
def test_another_way_is_noticed(source):
    assert opens(source)
    assert not opens("reach.connect(connection); task_sent.connect(handler); app.connection_for_write()")


def test_there_is_no_other_way_for_who_looks_at_a_fleet():
    package = Path(celery_affinity.__file__).parent
    ways = {}
    for file in package.rglob("*.py"):
        path = file.relative_to(package)
        if path.parts[0] not in OTHER_WAYS and (found := opens(file.read_text())):
            ways[str(path)] = found
    assert ways == {}
