"""A task that tells what it sees of its claim, at its first attempt and at its second."""

import time

from celery_affinity import Affinity, Exclusive

from . import new_app

app = new_app("keyed", affinity_queues=["celery"])


@app.task(name="keyed.look", bind=True, shared=False, affinity=Affinity(exclusive="city:{city}"))
def look(self, city=None, before=(), again=False):
    """Return [fencing number, key] of each try."""
    claim = self.request.affinity
    seen = [*before, [claim.fence, claim.key]]
    if again and not self.request.retries:
        raise self.retry(args=("elsewhere", seen), countdown=0)
    return seen


@app.task(name="keyed.hold", shared=False, affinity=Affinity(exclusive=Exclusive("{city}")))
def hold(city, seconds=0.1):
    """Return when it ran: times of this host, in s, that grow in all processes alike."""
    began = time.monotonic()
    time.sleep(seconds)
    return [began, time.monotonic()]
