"""The task plans a city again after changes of its stops.

Its decorator allows one run per city at a time, and merges the calls that wait for their city into one run.
"""

import time
from contextlib import AbstractContextManager, nullcontext

import redis
from celery import signals

from celery_affinity import Affinity, Call, Merge
from examples.comparing import record
from examples.comparing.processes import die_with_parent
from examples.routes import books
from examples.routes.app import FOLDER, KEYPREFIX, SIDE, URL, app
from examples.routes.cities import all_cities


def combine(earlier: Call, later: Call) -> Call:
    """Return one call with the changes of both calls."""
    return earlier.replace(changes=[*earlier.kwargs["changes"], *later.kwargs["changes"]])


ONE_RUN_PER_CITY = Affinity("route", exclusive="city:{city}", merge=Merge("{city}", fold=combine))


@app.task(name="routes.plan_city", bind=True, affinity=ONE_RUN_PER_CITY)
def plan_city(self, city: str, changes: list[books.Change]) -> books.Book:
    with city_lock(city):
        record.write("began", id=self.request.id, changes=[change["number"] for change in changes])
        cpu_s = time.process_time()
        book = books.apply_changes(FOLDER, all_cities()[city], changes)
        record.write("planned", id=self.request.id, cpu_s=time.process_time() - cpu_s)
    return book


def city_lock(city: str) -> AbstractContextManager[object]:
    """Return the lock of *city* on the side "lock". On the other sides, return a context manager without effect."""
    if SIDE != "lock":
        return nullcontext()
    return redis.Redis.from_url(URL).lock(f"{KEYPREFIX}lock:{city}", timeout=60, sleep=0.02)


def describe(name, args, kwargs):
    """Return the city of a call and its change, for the report."""
    city, changes = args
    if not changes:  # a recurring call
        return city, "planned again"
    [change] = changes
    return city, f"{change['number']}: {change['stop']} {'is added again' if change['is_wanted'] else 'is dropped'}"


record.enable(FOLDER, describe)
signals.worker_process_init.connect(lambda **_: die_with_parent(), weak=False)
