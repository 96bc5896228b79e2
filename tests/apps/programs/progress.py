"""Tasks that report their progress with celery-progress, and coroutine tasks for the pool of celery-aio-pool."""

import asyncio
import os

from celery_progress.backend import Progress, ProgressRecorder

from tests.support.processes import wait_until

from . import hold, make_app, note_run, release, runs

if "CPA_AUTO_PATCH" in os.environ:  # before the tasks
    import celery_aio_pool  # noqa: F401

app = make_app("progress")


@app.task(bind=True)
def render(self, path):
    note_run(self, path)
    ProgressRecorder(self).set_progress(1, 4, description=f"{path}, page 1")
    hold(path)
    return f"{path} rendered"


@app.task(bind=True)
async def fetch(self, path):
    note_run(self, path)
    await asyncio.sleep(0.01)
    return f"{path} fetched"


def scenario():
    result = render.apply_async(("a",), queue="pdf")
    wait_until(lambda: Progress(result).get_info()["state"] == "PROGRESS", 30, "the task reports its progress")
    seen = {"during": Progress(result).get_info()}
    release("a")
    seen["result"] = result.get(timeout=30)
    seen["after"] = Progress(app.AsyncResult(result.id)).get_info()
    return {**seen, "runs": runs()}


def coroutines():
    results = [fetch.apply_async((path,), queue=queue) for path in ("a", "b") for queue in ("pdf", "excel")]
    seen = {"results": [result.get(timeout=30) for result in results]}
    return {**seen, "runs": sorted(runs())}
