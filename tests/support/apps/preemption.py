"""Preemptible tasks of tenants, which record their runs in keys of the server."""

import os
import time

import redis

from celery_affinity import Affinity, Merge, Preempted, preempted

from . import new_app

url = os.environ["BROKER_URL"]
app = new_app(
    "preemption",
    task_acks_late=True,
    worker_soft_shutdown_timeout=float(os.environ.get("SOFT_S", "0")),
    affinity_heartbeat_interval=0.5,
    worker_send_task_events=os.environ.get("EVENTS") == "1",
)
server = redis.Redis.from_url(url)

#: Seconds until a task gives up: longer than any test waits.
LONG_S = 60

OF_TENANT = Affinity(tenant="acme", preemptible=True)


def count_to(task, most, step_s=0.02):
    """Continue to count where the last run was preempted. Return the number of runs."""
    name = task.request.id
    server.rpush(f"preemptions:{name}", task.request.affinity.preemptions)
    runs = server.incr(f"runs:{name}")  # after the other key, because tests wait for the number of runs
    counted = int(server.get(f"counted:{name}") or 0)
    while counted < most and not server.exists(f"enough:{name}"):
        if preempted():
            server.set(f"counted:{name}", counted)
            raise Preempted
        counted += 1
        time.sleep(step_s)
    return runs


@app.task(name="preemption.counts", bind=True, shared=False, affinity=OF_TENANT)
def counts(self):
    """Save a checkpoint and stop when preempted."""
    return count_to(self, LONG_S / 0.02)


@app.task(name="preemption.ignores", bind=True, shared=False, affinity=OF_TENANT)
def ignores(self, reads=False):
    """Do not stop. *reads*: check for a preemption, and record it."""
    runs = server.incr(f"runs:{self.request.id}")
    until_s = time.monotonic() + LONG_S
    while runs == 1 and time.monotonic() < until_s and not server.exists(f"enough:{self.request.id}"):
        if reads and preempted():
            server.set(f"asked:{self.request.id}", 1)
        time.sleep(0.02)
    return runs


@app.task(name="preemption.fails", bind=True, shared=False, affinity=OF_TENANT)
def fails(self):
    """Fail when preempted."""
    server.incr(f"runs:{self.request.id}")
    until_s = time.monotonic() + LONG_S
    while time.monotonic() < until_s:
        if preempted():
            raise ValueError("in the grace")
        time.sleep(0.02)


@app.task(name="preemption.raises", bind=True, shared=False, affinity=OF_TENANT, autoretry_for=(Exception,))
def raises(self):
    """Stop without a preemption in the first two runs."""
    if server.incr(f"runs:{self.request.id}") < 3:
        raise Preempted
    return [self.request.affinity.preemptions, self.request.delivery_info["redelivered"]]


@app.task(name="preemption.early", bind=True, shared=False, acks_late=False)
def early(self):
    server.incr(f"runs:{self.request.id}")
    until_s = time.monotonic() + LONG_S
    while time.monotonic() < until_s and not server.exists(f"enough:{self.request.id}"):
        if preempted():
            raise Preempted
        time.sleep(0.02)
    return "ended"


@app.task(
    name="preemption.together",
    bind=True,
    shared=False,
    affinity=Affinity(tenant="acme", preemptible=True, merge=Merge("all", keep="all")),
)
def together(self, calls):
    count_to(self, LONG_S / 0.02)
    return len(calls)


@app.task(name="preemption.adds", shared=False)
def adds(numbers):
    return sum(numbers)
