"""A fleet of simulated workers on a real server, with a fake clock."""

from itertools import count

import pytest

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.schema.keys import Keys

from ..support.scripted_fleet import ScriptedFleet

#: Hours at which the fake clocks begin. The server caches the capacity of types by the time of the last change, so two
#: tests must not change it at the same time.
_HOURS = count()


@pytest.fixture
def fleet(redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.scheduler.advance(next(_HOURS) * 3600)
    return fleet
