"""The tasks of a forwarder. The decorator of each says which of its jobs may run together.

celery -A examples.routes.rules.tasks worker -Q route,traffic -c 6
"""

import os
import time

from celery import Celery

from celery_affinity import Affinity, Exclusive, Rate

url = os.environ.get("REDIS_URL", "redis://localhost")
app = Celery("routes", broker=url, backend=url)
app.conf.broker_transport = "celery_affinity:Transport"  # the whole installation
app.conf.broker_connection_retry_on_startup = True

#: How long a run was, for who draws it: its sign, when it began, and when it ended, s.
Run = tuple[str, float, float]


def work(sign: str, seconds: float) -> Run:
    began = time.time()
    time.sleep(seconds)  # as if it were work
    return sign, began, time.time()


@app.task(affinity="route")  # any number at a time
def route(city: str, sign: str) -> Run:
    return work(sign, 0.3)


@app.task(affinity=Affinity("route", exclusive="city:{city}"))  # one at a time for each city
def reroute(city: str, sign: str) -> Run:
    return work(sign, 0.3)


@app.task(affinity=Affinity("traffic", rate=Rate("4/s", "source:{source}")))  # what the source of the data allows
def traffic(source: str, sign: str) -> Run:
    return work(sign, 0.15)


@app.task(bind=True, affinity=Affinity("route", exclusive=Exclusive("truck:{truck}", keep_order=True)))
def dispatch(self, truck: str, sign: str, is_lost: bool = False) -> Run:
    """Send an order to a truck. One that is lost is sent again before any later one: it keeps the key meanwhile."""
    if is_lost and not self.request.retries:
        raise self.retry(countdown=0.5)
    return work(sign, 0.2)
