"""A task that returns the claim it sees in its first and second attempts."""

import time

from celery_affinity import Affinity, Exclusive

from . import new_app

app = new_app("keyed", affinity_queues=["celery"])


@app.task(name="keyed.look", bind=True, shared=False, affinity=Affinity(exclusive="city:{city}"))
def look(self, city=None, before=(), again=False):
    """Return [fencing token, key] of each attempt."""
    claim = self.request.affinity
    seen = [*before, [claim.fence, claim.key]]
    if again and not self.request.retries:
        raise self.retry(args=("elsewhere", seen), countdown=0)
    return seen


@app.task(name="keyed.hold", shared=False, affinity=Affinity(exclusive=Exclusive("{city}")))
def hold(city, seconds=0.1):
    """Return start and end in s of the host's monotonic clock, which all processes share."""
    began = time.monotonic()
    time.sleep(seconds)
    return [began, time.monotonic()]
