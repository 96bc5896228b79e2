"""Tasks of celery-once: a call is refused while an equal call waits or runs."""

from celery_once import AlreadyQueued, QueueOnce

from tests.support.processes import wait_until

from . import URL, hold, make_app, note_run, release, runs, wait_for_no_key

app = make_app("once", ONCE={"backend": "celery_once.backends.Redis", "settings": {"url": URL, "default_timeout": 120}})


@app.task(base=QueueOnce, bind=True)
def render(self, path):
    note_run(self, path)
    hold(path)
    return f"{path} rendered"


@app.task(base=QueueOnce, bind=True, once={"keys": ["customer"], "graceful": True})
def report(self, customer, page):
    note_run(self, customer, page)
    hold(customer)


@app.task(base=QueueOnce, bind=True, once={"unlock_before_run": True})
def index(self, path):
    note_run(self, path)
    hold(path)


@app.task(base=QueueOnce, bind=True, max_retries=2)
def fail(self, path):
    note_run(self, path, self.request.retries)
    try:
        raise ValueError(path)
    except ValueError as exc:
        raise self.retry(exc=exc, countdown=0.1) from exc


def is_refused(task, *args):
    try:
        return task.apply_async(args, queue="pdf").state
    except AlreadyQueued:
        return "refused"


def scenario():
    first = render.apply_async(("a",), queue="pdf")
    seen = {"second": is_refused(render, "a")}
    wait_until(lambda: len(runs()) == 1, 30, "the first call runs")
    seen["while it runs"] = is_refused(render, "a")
    release("a")
    seen["first"] = first.get(timeout=30)
    wait_for_no_key("qo_*")
    release("a")
    seen["after it"] = render.apply_async(("a",), queue="excel").get(timeout=30)

    by_key = report.apply_async(("c1", 1), queue="pdf")
    seen["graceful"] = is_refused(report, "c1", 2)
    release("c1")
    by_key.get(timeout=30)

    running = index.apply_async(("b",), queue="pdf")
    wait_until(lambda: len(runs()) == 4, 30, "the call runs, and is unlocked")
    unlocked = index.apply_async(("b",), queue="excel")
    release("b")
    release("b")
    running.get(timeout=30)
    unlocked.get(timeout=30)

    failed = []
    for _ in range(2):
        failed.append(repr(fail.apply_async(("d",), queue="pdf").get(timeout=30, propagate=False)))
        wait_for_no_key("qo_*")
    return {**seen, "failed": failed, "runs": sorted(runs())}
