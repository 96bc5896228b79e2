"""Settings that give Flower time on a busy machine."""

import json

import pytest

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
