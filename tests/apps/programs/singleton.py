"""Tasks of celery-singleton: a duplicate of a call that waits or runs gets the result of that call."""

from celery_singleton import Singleton, clear_locks
from celery_singleton.exceptions import DuplicateTaskError

from tests.support.processes import wait_until

from . import hold, make_app, note_run, release, runs, wait_for_no_key

app = make_app("singleton")


@app.task(base=Singleton, bind=True)
def render(self, path):
    note_run(self, path)
    hold(path)
    return f"{path} rendered"


@app.task(base=Singleton, bind=True, unique_on=["customer"], raise_on_duplicate=True)
def report(self, customer, page):
    note_run(self, customer, page)
    hold(customer)


@app.task(base=Singleton, bind=True)
def fail(self):
    note_run(self)
    raise ValueError("it fails")


def scenario():
    first = render.apply_async(("a",), queue="pdf")
    wait_until(lambda: len(runs()) == 1, 30, "the first call runs")
    second, other = render.apply_async(("a",), queue="pdf"), render.apply_async(("b",), queue="excel")
    seen = {"one call": first.id == second.id, "another call": first.id != other.id}
    release("a")
    release("b")
    seen["results"] = [each.get(timeout=30) for each in (first, second, other)]
    wait_for_no_key("SINGLETONLOCK_*")
    release("a")
    third = render.apply_async(("a",), queue="pdf")
    seen["after it"] = [third.get(timeout=30), third.id != first.id]

    report.apply_async(("c", 1), queue="pdf")
    try:
        report.apply_async(("c", 2), queue="pdf")
    except DuplicateTaskError as exc:
        seen["duplicate"] = type(exc).__name__
    release("c")
    seen["failed"] = []
    for _ in range(2):
        wait_for_no_key("SINGLETONLOCK_*")
        seen["failed"].append(repr(fail.apply_async(queue="pdf").get(timeout=30, propagate=False)))

    revoked = render.apply_async(("d",), queue="nobody")
    clear_locks(app)
    again = render.apply_async(("d",), queue="pdf")
    release("d")
    seen["cleared"] = [again.get(timeout=30), again.id != revoked.id]
    return {**seen, "runs": sorted(runs())}
