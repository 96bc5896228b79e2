"""One of many publishers, each with a dispatcher: ``python -m tests.support.apps.publisher FIRST STEP JOBS``."""

import signal
import sys

from celery_affinity.dispatcher.dispatcher import Dispatcher
from celery_affinity.dispatcher.ingest import Ingest
from celery_affinity.dispatcher.recurring import RecurringCalls
from celery_affinity.results.reporter import ResultReporter
from celery_affinity.results.unrun_jobs import UnrunJobReporter

TYPES = ("pdf", "excel", "index", "mail", "image")


def main(first, step, jobs):
    from .typed import (
        app,
        tally,  # not above: the tests import TYPES without a broker
    )

    with app.connection_for_write() as connection:
        scheduler, reporter = connection.default_channel.scheduler, ResultReporter(app, "publisher", lambda: None)
        dispatcher = Dispatcher(scheduler, UnrunJobReporter(reporter), Ingest(app), RecurringCalls(app, reporter))
        dispatcher.start()
        for job in range(first, jobs, step):
            tally.apply_async((job,), affinity=TYPES[job % 5], priority=job % 11, on_demand=job % 7 == 0)
        print("published", flush=True)
        signal.pause()  # the dispatcher ticks until the process is killed


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
