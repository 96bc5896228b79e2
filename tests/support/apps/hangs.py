"""The app of `tests.support.apps.typed` with two tasks whose ends hang the process that reports them.

The result backend of one task is at ``$MUTE_URL``; a signal handler of the other never returns.
"""

import os
import time

from celery.backends.redis import RedisBackend
from celery.signals import task_revoked

from .typed import app, note


@app.task(affinity="nobody")
def mute(job):
    pass


@app.task(affinity="nobody")
def handled_for_ever(job):
    pass


mute.backend = RedisBackend(app=app, url=os.environ["MUTE_URL"])


@task_revoked.connect(sender=handled_for_ever)
def _hang(**_):
    note("start", "handler")
    time.sleep(1000)
