"""An app with a bound of two waiting jobs per type, with tasks that retry and tasks with follow-up calls."""

import os
import time

from celery_affinity import Bound

from . import new_app

app = new_app("bounded", affinity_max_pending={"pdf": 2, "log": Bound(2, full="drop-oldest")})


def wait_until_free(free):
    """Wait until the test makes the file *free*."""
    until = time.monotonic() + 60
    while not os.path.exists(free) and time.monotonic() < until:
        time.sleep(0.01)


@app.task(affinity="pdf", bind=True, max_retries=1)
def flaky(self, free):
    wait_until_free(free)
    if not self.request.retries:
        raise self.retry(countdown=0)
    return "at the second try"


@app.task(affinity="pdf")
def render(page, free=None):
    if free:
        wait_until_free(free)
    return page


@app.task(affinity="pdf")
def joined(pages):
    return pages


@app.task(affinity="log")
def log(line):
    return line
