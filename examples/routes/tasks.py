"""The task: a change of a stop plans its city again.

Its decorator says that a city is planned by one run at a time, and that the changes which wait for it meanwhile are
planned together.
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


def together(a: Call, b: Call) -> Call:
    """Return one call with the changes of both; *a* came first."""
    return a.replace(changes=[*a.kwargs["changes"], *b.kwargs["changes"]])


ONE_RUN_OF_A_CITY = Affinity("route", exclusive="city:{city}", merge=Merge("{city}", fold=together))


@app.task(name="routes.plan_city", bind=True, affinity=ONE_RUN_OF_A_CITY)
def plan_city(self, city: str, changes: list[books.Change]) -> books.Book:
    with only_one(city):
        record.write("began", id=self.request.id, changes=[change["number"] for change in changes])
        cpu_s = time.process_time()
        book = books.change(FOLDER, all_cities()[city], changes)
        record.write("planned", id=self.request.id, cpu_s=time.process_time() - cpu_s)
    return book


def only_one(city: str) -> AbstractContextManager[object]:
    """Return what keeps other runs of *city* out: nothing where the scheduler does, or where nobody thought of it."""
    if SIDE != "lock":
        return nullcontext()
    return redis.Redis.from_url(URL).lock(f"{KEYPREFIX}lock:{city}", timeout=60, sleep=0.02)


def describe(name, args, kwargs):
    """Return the city of a call and its change, for the numbers."""
    city, changes = args
    if not changes:  # a recurring call
        return city, "planned again"
    [change] = changes
    return city, f"{change['number']}: {change['stop']} {'comes back' if change['is_wanted'] else 'drops out'}"


record.to(FOLDER, describe)
signals.worker_process_init.connect(lambda **_: die_with_parent(), weak=False)
