"""A worker derives the server's time from its own monotonic clock."""

import time

from celery_affinity.leases import lease
from celery_affinity.leases.lease import ServerClock


def test_server_clock_advances_with_the_monotonic_clock(monkeypatch):
    now = [5.0]
    monkeypatch.setattr(lease, "now_s", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: 0.0)
    clock = ServerClock()
    assert clock.now_us() < 1_000_000
    clock.set(1_800_000_000_000_000)
    now[0] += 90.5  # or the machine slept
    assert clock.now_us() == 1_800_000_090_500_000
    clock.set(1_700_000_000_000_000)  # a server that has another clock after a failover
    assert clock.now_us() == 1_700_000_000_000_000
