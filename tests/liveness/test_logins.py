"""A worker sends a renewed login to its guard without reconnecting itself, since the guard may have to connect."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from celery_affinity.liveness import guard as guard_module
from celery_affinity.liveness.guard import ForkMarker, Guard
from celery_affinity.liveness.pulse import Pulse

from ..support.processes import wait_until


@pytest.fixture
def guard(monkeypatch):
    made = Guard("worker", "worker@host", 5.0, pulse=Pulse(), kin=ForkMarker(), ends_children=False)
    made._process = Mock(poll=lambda: None)  # it runs
    monkeypatch.setattr(guard_module, "has_credential_provider", lambda pool: True)
    return made


def test_renewed_login_is_sent_to_the_guard_once(guard, monkeypatch):
    login = {"password": "first"}
    monkeypatch.setattr(guard_module, "address_of", lambda pool: dict(login))
    monkeypatch.setattr(guard_module, "_LOGIN_INTERVAL_S", 0.0)
    scheduler, messages = SimpleNamespace(client=Mock()), []
    guard._scheduler, guard._sent_server = scheduler, dict(login)
    monkeypatch.setattr(guard, "_send_message", messages.append)

    def tend_guard():
        guard.tend(scheduler)
        wait_until(lambda: not guard._login_thread.is_alive(), 5, "the login thread has ended")

    tend_guard()
    assert messages == []
    login["password"] = "second"
    for _ in range(2):
        tend_guard()
    assert messages == [{"server": {"password": "second"}}]
