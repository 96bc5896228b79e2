"""Fixtures of the worker tests."""

import pytest
from celery import Celery

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.schema.keys import Keys

from ..support import merging as merged_calls
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def app():
    """An app without a server."""
    with Celery("alone", broker="memory://", set_as_current=False) as app:
        yield app


@pytest.fixture
def merging(load_app, valkey, redis_client, tmp_path):
    """Calls that merge, and workers of their app."""
    app = load_app(merged_calls.APP)
    return merged_calls.Merging(app, valkey, redis_client, tmp_path / "ledger")


@pytest.fixture
def scripted(redis_client):
    """Simulated workers on a server with a fake clock."""
    return ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
