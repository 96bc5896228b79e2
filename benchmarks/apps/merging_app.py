"""The Celery app for merged calls. Its tasks are as short as the others, and are published in the same ways."""

import json
import os

from celery import Celery

from benchmarks import ledger
from celery_affinity import Affinity, Merge

app = Celery("benchmark-merging", set_as_current=False)
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    **json.loads(os.environ["BENCHMARK_CONF"]),
)


def _merged(name, merge, **options):
    return app.task(name=name, affinity=Affinity("celery", merge=merge), **options)


@_merged("own_key", Merge("{number}", keep="last"))
def own_key(number):
    ledger.note(number)


@_merged("one_key", Merge("all", keep="last"))
def one_key(number):
    ledger.note(number)


@_merged("shared", Merge("all", keep="last", most=1_000_000, most_bytes=1_000_000_000), ignore_result=False)
def shared(number):
    ledger.note(number)
    return number
