"""The tasks of a forwarder. The decorator of each task sets which of its jobs can run at the same time.

celery -A examples.routes.rules.tasks worker -Q route,traffic -c 6
"""

import os
import time

from celery import Celery

from celery_affinity import Affinity, Exclusive, Rate

url = os.environ.get("REDIS_URL", "redis://localhost")
app = Celery("routes", broker=url, backend=url)
app.conf.broker_transport = "celery_affinity:Transport"  # this line enables celery_affinity
app.conf.broker_connection_retry_on_startup = True

#: A run in the timeline: its letter, and when it started and ended, in Unix seconds.
Run = tuple[str, float, float]


def work(letter: str, seconds: float) -> Run:
    started = time.time()
    time.sleep(seconds)  # as if it were work
    return letter, started, time.time()


@app.task(affinity="route")  # any number at a time
def route(city: str, letter: str) -> Run:
    return work(letter, 0.3)


@app.task(affinity=Affinity("route", exclusive="city:{city}"))  # one at a time for each city
def reroute(city: str, letter: str) -> Run:
    return work(letter, 0.3)


@app.task(affinity=Affinity("traffic", rate=Rate("4/s", "source:{source}")))  # the source's request limit
def traffic(source: str, letter: str) -> Run:
    return work(letter, 0.15)


@app.task(bind=True, affinity=Affinity("route", exclusive=Exclusive("truck:{truck}", keep_order=True)))
def dispatch(self, truck: str, letter: str, is_lost: bool = False) -> Run:
    """Send an order to a truck. A lost order keeps the key during its retry, so no later order overtakes it."""
    if is_lost and not self.request.retries:
        raise self.retry(countdown=0.5)
    return work(letter, 0.2)
