"""Publishers whose server is down get a clear error in bounded time, and never hang."""

import os
import signal
import socket
from contextlib import contextmanager
from time import monotonic

import pytest
from kombu import pools
from kombu.exceptions import OperationalError

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.schema.keys import Keys

from ..support.apps import app_for
from ..support.processes import wait_until

pytestmark = pytest.mark.timeout(20)

#: Timeout in seconds, and a retry policy with short pauses. The tests wait for the full timeout.
SHORT_S = 0.4
QUICK = {"max_retries": 2, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
TRIES = 1 + QUICK["max_retries"]


@contextmanager
def producer(url, **settings):
    with app_for(url, task_publish_retry_policy=QUICK, task_ignore_result=True, **settings) as app:
        yield app
    pools.reset()


def seconds_to_fail(app, match, **options):
    began = monotonic()
    with pytest.raises(OperationalError, match=match):
        app.send_task("task", queue="pdf", **options)
    return monotonic() - began


@pytest.fixture
def listener():
    """An unread port: connections are accepted and never answered."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(20)
        yield taken


def url_of(listening):
    return f"redis://127.0.0.1:{listening.getsockname()[1]}/0"


@contextmanager
def stopped(server):
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_missing_server_is_an_immediate_error():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with producer(url_of(free)) as app:
            assert seconds_to_fail(app, "Connection refused") < 3


def test_host_without_an_address_is_an_immediate_error():
    with producer("redis://no-such-host.invalid/0") as app:
        assert seconds_to_fail(app, "no-such-host.invalid") < 10, "how long names are looked up is the resolver's"


def test_silent_server_fails_after_the_connection_timeout(listener):
    with producer(url_of(listener), broker_connection_timeout=SHORT_S) as app:
        assert SHORT_S <= seconds_to_fail(app, "Timeout reading") < SHORT_S * TRIES + 2


def test_packet_dropping_host_fails_after_the_connection_timeout():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]  # a full backlog: further connections get no answer
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        with producer(url_of(full), broker_connection_timeout=SHORT_S) as app:
            assert SHORT_S <= seconds_to_fail(app, "Timeout connecting") < SHORT_S * TRIES + 2
        for each in waiting:
            each.close()


@pytest.mark.parametrize("retry", [True, False])
def test_stopped_server_fails_after_the_socket_timeout_per_try(retry):
    options = {"socket_timeout": SHORT_S, "socket_connect_timeout": SHORT_S}
    with EmbeddedServer() as server, producer(server.url, broker_transport_options=options) as app:
        app.send_task("task", queue="pdf")
        with stopped(server):
            # Tries: one of the publish, and those of a connection, one more than the policy's retries.
            most_s = SHORT_S * (1 + TRIES) if retry else SHORT_S
            took_s = seconds_to_fail(app, "Timeout reading", task_id="away", retry=retry)
            assert SHORT_S <= took_s < most_s + 2
        with app.connection_for_read() as connection:
            scheduler = connection.default_channel.scheduler
            reader = scheduler.reader
            app.send_task("task", queue="pdf")
            # There is one job if the server has read the socket of the publisher that gave up.
            wait_until(lambda: reader.pending("pdf") >= 2, 10, "it publishes again")
            jobs = reader.ask_one("get", Keys().key("task", "away"))
            assert len((jobs or b"").split()) <= 1


def test_unanswered_unix_socket_is_an_error(tmp_path):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen(20)
        with producer(f"socket://{tmp_path / 's'}", broker_connection_timeout=SHORT_S) as app:
            assert seconds_to_fail(app, "Timeout reading") < SHORT_S * TRIES + 2


def test_publish_without_retry_tries_everything_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with producer(url_of(free), task_publish_retry=False, broker_transport_options={"max_retries": 0}) as app:
            assert seconds_to_fail(app, "Connection refused") < 1
