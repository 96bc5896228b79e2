"""Tasks of tenants: some set their tenant, the others inherit the publisher's."""

import time

from celery_affinity import Affinity, Tenant

from . import new_app

app = new_app("tenants", affinity_tenants={"acme": Tenant(max=2)}, affinity_queues=["celery"])


@app.task(name="tenants.render", bind=True, shared=False, affinity=Affinity(tenant="{customer}"))
def render(self, customer, seconds=0.0, again=False):
    """Return start and end in s of the host's monotonic clock, which all processes share."""
    began = time.monotonic()
    time.sleep(seconds)
    if again and not self.request.retries:
        raise self.retry(countdown=0)
    assert self.request.affinity.tenant == customer
    return [began, time.monotonic()]


@app.task(name="tenants.told", bind=True, shared=False)
def told(self, *_):
    """Return the tenant of the call."""
    return self.request.affinity.tenant


@app.task(name="tenants.publish", shared=False, affinity=Affinity(tenant="{customer}"))
def publish(customer):
    """Return the ids of calls that the task has published."""
    return [told.delay().id, told.apply_async(tenant="other").id, told.apply_async(tenant=False).id]


@app.task(name="tenants.fails", shared=False, affinity=Affinity(tenant="{customer}"))
def fails(customer):
    raise ValueError(customer)


@app.task(name="tenants.becomes", bind=True, shared=False, affinity=Affinity(tenant="{customer}"))
def becomes(self, customer):
    raise self.replace(told.si())
