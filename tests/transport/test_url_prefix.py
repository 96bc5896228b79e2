"""A broker URL that begins with ``affinity+`` selects this transport in apps without any setting of this package."""

import os
import subprocess
import sys

import pytest
from celery import Celery
from kombu import Connection

from celery_affinity.transport.channel import Channel, SentinelChannel
from celery_affinity.transport.transport import ClusterChannel, Transport

from ..support.processes import start_worker

URLS = {
    "affinity+redis://one:1/3": ("redis://one:1/3", Channel),
    "affinity+rediss://one:1/3": ("rediss://one:1/3", Channel),
    "affinity+sentinel://one:1/0;affinity+sentinel://two:2/0": ("sentinel://one:1/0", SentinelChannel),
    "affinity+sentinel://one:1/0;sentinel://two:2/0": ("sentinel://one:1/0", SentinelChannel),
    "affinity+redis-cluster://one:1;affinity+redis-cluster://two:2": ("redis-cluster://one:1//", ClusterChannel),
    "affinity+redis+cluster://one:1": ("redis-cluster://one:1//", ClusterChannel),
}

#: An application whose configuration has no place for a transport.
APPLICATION = """
from celery import Celery

app = Celery("application")


@app.task
def render(number):
    return f"invoice {number}"
"""


@pytest.mark.parametrize("url", URLS)
def test_prefixed_url_selects_the_channel_of_its_scheme(url):
    plain, channel = URLS[url]
    for connection in (Celery(broker=url, set_as_current=False).connection_for_write(), Connection(url)):
        transport = connection.transport
        assert isinstance(transport, Transport)
        assert (connection.as_uri(), transport.Channel) == (plain, channel)


def test_prefixed_url_overrides_the_setting(monkeypatch):
    app = Celery(broker="redis://one", set_as_current=False)
    app.conf.broker_transport = "redis"
    monkeypatch.setenv("CELERY_BROKER_URL", "affinity+redis://two")
    assert isinstance(app.connection_for_write().transport, Transport)
    assert app.conf.broker_transport == "celery_affinity:Transport"
    monkeypatch.delenv("CELERY_BROKER_URL")
    for urls in ("redis://one", ["redis://one", "redis://two"], ("redis://one", "redis://two")):
        stock = Celery(set_as_current=False)
        stock.conf.broker_url = urls
        assert stock.conf.broker_transport is None
        assert not isinstance(stock.connection_for_write().transport, Transport)
    stock.conf.broker_url = ["affinity+redis://one", "affinity+redis://two"]  # after the first use of the settings
    assert isinstance(stock.connection_for_write().transport, Transport)
    assert stock.conf.broker_transport == "celery_affinity:Transport"


def test_prefixed_failover_list_switches_between_its_urls():
    connection = Connection("affinity+redis://one:1/0;affinity+redis://two:2/0")
    assert connection.transport.client is connection
    connection.maybe_switch_next()
    assert connection.as_uri() == "redis://two:2/0"
    assert isinstance(connection.transport, Transport)


def test_application_without_settings_uses_the_url_of_its_environment(valkey, redis_client, tmp_path):
    (tmp_path / "application.py").write_text(APPLICATION)
    url, path = f"affinity+{valkey.url}", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    env = {"CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": valkey.url}
    start_worker("application", url, ["pdf"], pool="solo", env={**env, "PYTHONPATH": path}).wait_for("serves pdf", 60)

    def publish(*modules):
        code = [f"import {', '.join(modules)}", "call = application.render.apply_async((7,), queue='pdf')"]
        code += ["print(call.get(timeout=30))"]
        options = {"capture_output": True, "text": True, "env": {**os.environ, **env, "PYTHONPATH": path}}
        return subprocess.run([sys.executable, "-c", "\n".join(code)], timeout=120, **options)

    published = publish("celery_affinity", "application")
    assert published.stdout == "invoice 7\n", published.stderr
    assert redis_client.exists("{affinity:default}:schema")
    assert "No such transport: affinity" in publish("application").stderr, "kombu looks in its own table"
