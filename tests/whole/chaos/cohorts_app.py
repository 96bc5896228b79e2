"""The app of a fleet with two cohorts. The ledger records each start and end of a task with the worker's process id."""

import os
import time
from itertools import count
from pathlib import Path

from celery import Celery

from .ledger import Ledger

#: The cohort on a separate server, and the prefix of its types.
OTHER, BEGINNING = "eu", "eu."

#: Worker timeout, heartbeat interval and reply timeout in seconds.
WORKER_TIMEOUT_S, HEARTBEAT_S, REPLY_TIMEOUT_S = 5.0, 1.0, 1.0

ledger = Ledger(Path(os.environ.get("LEDGER", os.devnull)))
_runs = count(1)


def app_of(url: str | None, other_url: str | None) -> Celery:
    """Return the app of the fleet with its broker at *url* and without a result backend."""
    app = Celery("cohorts", broker=url, set_as_current=False)
    app.conf.update(
        broker_transport="celery_affinity:Transport",
        affinity_cohorts={OTHER: {"types": [f"{BEGINNING}*"], "url": other_url}},
        affinity_worker_timeout=WORKER_TIMEOUT_S,
        affinity_heartbeat_interval=HEARTBEAT_S,
        broker_transport_options={
            "socket_timeout": REPLY_TIMEOUT_S,
            "socket_connect_timeout": REPLY_TIMEOUT_S,
            "health_check_interval": 2,
        },
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        task_publish_retry_policy={"max_retries": 300, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.4},
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=True,
    )
    return app


app = app_of(os.environ.get("BROKER_URL"), os.environ.get("OTHER_URL"))


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True, max_retries=1)
def work(self, job, seconds=0.0, again=False):
    """Work for *seconds*. *again*: retry once, which is a separate job."""
    name, run = f"{job}.{self.request.retries}", f"{os.getpid()}.{next(_runs)}"
    # Each worker is the first process of a session.
    ledger.note("start", name, run=run, worker=os.getsid(0), key=(self.request.affinity.key or "-"))
    time.sleep(seconds)
    ledger.note("end", name, run=run)
    if again and not self.request.retries:
        raise self.retry(countdown=0.2)
