"""The Celery app for two customers, one with many short calls and one with long calls. Each side has its settings."""

import os
import time

import redis
from celery import Celery

from celery_affinity import Affinity, Tenant

STOCK, AGE, SHARE = SIDES = "stock", "age", "share"

#: Customer -> weight, and duration of a call in seconds.
CUSTOMERS = {"quick": (1, 0.01), "slow": (3, 2.0)}

url, side = os.environ.get("SHARES_URL", "redis://"), os.environ.get("SHARES_SIDE", SHARE)
#: Prefix of all keys of one side, because other applications can use the server.
keyprefix = os.environ.get("SHARES_KEYPREFIX", "")
app = Celery("shares", broker=url, set_as_current=False)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=1, task_acks_late=True)
app.conf.broker_transport_options = {"global_keyprefix": keyprefix}
if side != STOCK:
    app.conf.update(
        broker_transport="celery_affinity:Transport",
        affinity_tenant_turns=side,
        affinity_tenants={name: Tenant(weight=weight) for name, (weight, _) in CUSTOMERS.items()},
    )

#: Redis list with an entry "customer seconds" for each call that has run.
RAN = "ran"

#: Redis key that exists when all calls are published.
PUBLISHED = "published"

_ledger = redis.Redis.from_url(url)


@app.task(name="shares.work", affinity=Affinity(tenant="{customer}"))
def work(customer, seconds):
    started = time.monotonic()
    time.sleep(seconds)
    _ledger.rpush(keyprefix + RAN, f"{customer} {time.monotonic() - started}")
