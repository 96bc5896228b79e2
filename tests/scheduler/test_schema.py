"""Processes with different schemas cannot share a server: the later process names the needed upgrade."""

import pytest

from celery_affinity import SchemaError
from celery_affinity.scheduler import server_info
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import SCHEMA, Keys

from ..support.apps import APP
from ..support.command import affinity
from ..support.full_server import full_server
from ..support.processes import start_worker

KEY = Keys().key("schema")


@pytest.fixture
def scheduler(redis_client):
    return Scheduler(redis_client, Keys())


def test_first_process_writes_its_schema_number(scheduler, redis_client):
    server_info.check_schema(scheduler.client, scheduler.keys)
    assert redis_client.get(KEY) == str(SCHEMA).encode()
    server_info.check_schema(scheduler.client, scheduler.keys)


@pytest.mark.parametrize("found", [SCHEMA + 1, SCHEMA - 1])
def test_another_schema_is_refused_with_advice(scheduler, redis_client, found):
    """No release converts data, so the advice is never to upgrade the other processes, whichever number is larger."""
    redis_client.set(KEY, found)
    with pytest.raises(SchemaError, match=f"Deploy a release that works with schema {found}, or give this") as raised:
        server_info.check_schema(scheduler.client, scheduler.keys)
    assert f"has schema {found}, and this release of celery_affinity works with schema {SCHEMA} only" in str(
        raised.value
    )


def test_full_server_is_not_refused(scheduler, redis_client):
    with full_server(redis_client):
        server_info.check_schema(scheduler.client, scheduler.keys)


def test_publishers_workers_and_commands_refuse_another_schema(valkey, redis_client, load_app):
    redis_client.set(KEY, SCHEMA + 1)
    app = load_app(APP)
    with pytest.raises(SchemaError):
        app.send_task("any.task", queue="pdf", retry=False)
    assert redis_client.keys() == [KEY.encode()], "nothing was written"

    run = affinity(valkey.url, "status")
    assert run.returncode == 1
    assert f"has schema {SCHEMA + 1}" in run.stderr

    worker = start_worker(APP, valkey.url, ["pdf"], pool="solo", env={"LEDGER": "/dev/null"})
    assert worker.wait(20) != 0
    assert f"Deploy a release that works with schema {SCHEMA + 1}" in worker.log()


@pytest.mark.parametrize("found", ["abc", b"\xff", "", "-1", "1.0"])
def test_invalid_schema_number_is_refused(redis_client, found):
    redis_client.set(Keys().key("schema"), found)
    with pytest.raises(SchemaError, match="must hold the number of a schema"):
        server_info.check_schema(redis_client, Keys())
