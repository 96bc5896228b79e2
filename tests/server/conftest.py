"""A fleet on a real server, whose workers do as the test says and whose time is passed in."""

import pytest

from celery_affinity.rules.redis_keys import Keys

from ..support.clocked import ClockedScheduler
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(ClockedScheduler(redis_client, Keys()))
