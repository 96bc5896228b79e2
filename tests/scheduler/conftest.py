"""A fleet on a real server, whose workers do as the test says and whose time is passed in."""

import pytest

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.schema.keys import Keys

from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
