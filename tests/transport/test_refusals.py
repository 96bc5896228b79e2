"""A worker or a call refuses invalid URLs, settings and names before it connects."""

import json
import os

import pytest

from celery_affinity.errors import SettingError, TransportError
from celery_affinity.schema.keys import Keys

from ..support.apps import APP, app_for
from ..support.processes import run_celery


def _run_worker(url, **env):
    env = {**os.environ, "BROKER_URL": url, "LEDGER": os.devnull, **env}
    return run_celery("-A", APP, "worker", "-P", "solo", "-Q", "pdf", env=env)


def test_url_of_another_transport_prevents_a_workers_start():
    refused = _run_worker("redis+socket:///tmp/redis.sock", RESULT_URL="redis://localhost")
    assert refused.returncode != 0
    assert "socket:///path/to/redis.sock" in refused.stderr
    assert "redis+socket" in refused.stderr


def test_invalid_setting_prevents_a_workers_start(valkey):
    refused = _run_worker(valkey.url, WORKER_TIMEOUT="-1")
    assert refused.returncode != 0
    assert "affinity_worker_timeout must be a number of seconds above 0, up to 315,360,000, got: -1.0" in refused.stderr


@pytest.mark.parametrize("options", [{"namespace": "{x}"}, {"namespace": None}, {"global_keyprefix": 5}])
def test_invalid_key_names_are_refused_before_connecting(valkey, redis_client, options):
    refused = _run_worker(valkey.url, CONF=json.dumps({"broker_transport_options": options}))
    assert refused.returncode != 0
    (name,) = options
    assert f"celery_affinity: {name} must be a str that holds no braces" in refused.stderr
    before = redis_client.info("clients")["connected_clients"]
    app = app_for(valkey.url, broker_transport_options=options)
    with app.connection_for_write() as connection, pytest.raises(SettingError, match=f"{name} must be"):
        connection.default_channel  # noqa: B018  # it opens
    assert redis_client.info("clients")["connected_clients"] == before


def test_global_keyprefix_accepts_none(valkey, redis_client):
    app = app_for(valkey.url, broker_transport_options={"global_keyprefix": None})
    with app.connection_for_write() as connection:
        app.send_task("task", queue="pdf", connection=connection)
        assert connection.default_channel.scheduler.keys == Keys()
    assert redis_client.zcard(Keys().key("lane", "pdf", "queued.0")) == 1


def test_module_instead_of_transport_class_is_refused(valkey):
    app = app_for(valkey.url, broker_transport="celery_affinity:transport")
    with pytest.raises(TransportError, match="with a capital T"):
        app.send_task("task")
