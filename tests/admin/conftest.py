"""A fleet without processes, an app of its server, and the app's job API."""

import pytest

import celery_affinity
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def app(load_app):
    return load_app(APP)


@pytest.fixture
def fleet(valkey, redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


@pytest.fixture
def jobs(app, fleet):
    return celery_affinity.jobs(app)
