"""Waits are bounded: the log names the process or thread that does not end."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from celery_affinity import background
from celery_affinity.background import PeriodicThread
from celery_affinity.embedded import server
from celery_affinity.liveness import guard, guard_process
from celery_affinity.liveness.guard import ForkMarker, Guard
from celery_affinity.liveness.pulse import Pulse


@pytest.fixture
def release():
    release = threading.Event()
    yield release
    release.set()


def test_stop_does_not_wait_for_a_hanging_heartbeat(release, monkeypatch, caplog):
    monkeypatch.setattr(background, "_STOP_TIMEOUT_S", 0.05)
    begun = threading.Event()

    def heartbeat():
        begun.set()
        release.wait(30)

    hanging = PeriodicThread("hanging", heartbeat, 60)
    hanging.start()
    hanging.wake()
    assert begun.wait(10)
    hanging.stop()
    assert "hanging: ending without waiting for work that takes longer than 0.05 s" in caplog.text


def test_failing_calls_are_logged_and_repeated(monkeypatch, caplog):
    monkeypatch.setattr(background, "_PAUSE_AFTER_ERROR_S", 0.01)
    called = threading.Semaphore(0)

    def tick():
        called.release()
        raise ValueError("no tick")

    ticking = PeriodicThread("affinity-dispatcher", tick, 60)
    ticking.start()
    ticking.wake()
    assert called.acquire(timeout=10)
    assert called.acquire(timeout=10)
    ticking.stop()
    first, *later = (record.getMessage() for record in caplog.records)
    assert first == "affinity-dispatcher: a call failed; the next one is in 0.01 s"
    assert set(later) <= {f"{first}: ValueError: no tick"}  # only the first line has a traceback


class Unkillable:
    """A process that does not end."""

    def __init__(self):
        self.pid, self.killed = 0, False
        self.stdin = SimpleNamespace(write=len, close=lambda: None)

    def kill(self):
        self.killed = True

    def wait(self, timeout):
        raise subprocess.TimeoutExpired("guard", timeout)


@pytest.fixture
def own_guard(monkeypatch):
    monkeypatch.setattr(guard, "_DISMISS_WAIT_S", 0.05)
    return Guard("worker", "worker@host", 5, pulse=Pulse(), kin=ForkMarker(), ends_children=False)


def test_dismiss_does_not_wait_for_a_hanging_guard(own_guard, caplog):
    own_guard._process = process = Unkillable()
    own_guard.dismiss()
    assert process.killed
    assert "was killed but does not end" in caplog.text


def test_dismiss_does_not_wait_for_a_hanging_restart(own_guard, release, monkeypatch, caplog):
    begun = threading.Event()

    def start(scheduler):
        begun.set()
        release.wait(30)  # like a slow credential provider

    monkeypatch.setattr(own_guard, "_start", start)
    tending = threading.Thread(target=own_guard.tend, args=(None,), daemon=True)
    tending.start()
    assert begun.wait(10)
    own_guard.dismiss()
    assert "has been restarting for over 0.05 s" in caplog.text
    release.set()
    tending.join(10)


def test_reap_does_not_wait_for_a_hanging_child(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(server, "_MAX_REAP_S", 0.05)
    with (tmp_path / "log").open("wb") as log:
        process = server.start_child([sys.executable, "-c", "import time; time.sleep(600)"], log=log)
    try:
        server.reap_child(process)
        assert f"Not waiting for process {process.pid}" in caplog.text
    finally:
        process.kill()
        process.wait(10)


def test_hanging_ps_yields_no_state(monkeypatch):
    def run(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    assert guard_process._state_by_ps(1) == b""
