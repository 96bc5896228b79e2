"""The tasks of Celery workers. The ledger records each start and end."""

import os
import time
from itertools import count
from pathlib import Path

from celery import Celery, shared_task
from celery.signals import worker_init

from ..ledger import Ledger

TYPE = "page"

#: Worker timeout in seconds: longer than the start of a web process on a busy machine.
WORKER_TIMEOUT_S = 12.0
HEARTBEAT_S = 1.0

#: Options of a chord's body. Celery treats a chord as claimed while its body may be published, 4 s per attempt.
BODY = {"retry_policy": {"max_retries": 10, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.4}}

ledger = Ledger(Path(os.environ.get("LEDGER", os.devnull)))
_runs = count(1)
_worker_pid = 0


def make(url: str | None) -> Celery:
    app = Celery("chaos_over_http", broker=url, backend=url)
    app.conf.update(
        broker_transport="celery_affinity:Transport",
        affinity_worker_timeout=WORKER_TIMEOUT_S,
        affinity_heartbeat_interval=HEARTBEAT_S,
        affinity_max_deliveries=1000,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        task_publish_retry_policy={"max_retries": 300, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.4},
        result_backend_always_retry=True,
        result_backend_max_sleep_between_retries_ms=500,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        task_default_queue=TYPE,
    )
    return app


app = make(os.environ.get("BROKER_URL"))


@worker_init.connect
def _on_worker_init(**_):
    global _worker_pid
    _worker_pid = os.getpid()


@shared_task(bind=True, acks_late=True, reject_on_worker_lost=True)
def part(self, token, number, seconds):
    return _run(self.request, token, seconds, lambda: number)


@shared_task(bind=True, acks_late=True, reject_on_worker_lost=True)
def total(self, numbers, token):
    return _run(self.request, token, 0, lambda: sum(numbers))


def _run(request, token, seconds, result):
    run = f"{os.getpid()}.{next(_runs)}"
    ledger.note("start", token, run=run, worker=_worker_pid, by="celery")
    time.sleep(seconds)
    ledger.note("end", token, run=run)
    return result()
