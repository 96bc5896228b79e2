"""A fleet whose time is passed in, its reader, and settings that give Flower time on a busy machine."""

import json

import pytest

from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.schema.keys import Keys

from ..support.clocked import ClockedReader
from ..support.scripted_fleet import ScriptedFleet

#: Time-outs, s, instead of the 1 s for which Flower itself waits for a connection: a busy machine takes longer.
PATIENT = {"socket_connect_timeout": 20, "socket_timeout": 20}


@pytest.fixture
def configure(monkeypatch):
    """Return a function that gives all processes transport options and settings."""

    def configure(transport_options, **conf):
        conf["broker_transport_options"] = {**PATIENT, **transport_options}
        monkeypatch.setenv("CONF", json.dumps(conf))

    configure({})
    return configure


@pytest.fixture
def fleet(redis_client):
    """A fleet whose time is passed in. A module whose fleet has the server's time has its own fixture of this name."""
    return ScriptedFleet(FakeClockScheduler(redis_client, Keys()))


@pytest.fixture
def reader(fleet):
    return ClockedReader(fleet.scheduler)
