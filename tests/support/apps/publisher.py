"""One of many publishers, with a dispatcher of its own: ``python -m tests.support.apps.publisher FIRST STEP JOBS``."""

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
        teller = ResultReporter(app, "publisher", lambda: None)
        dispatcher = Dispatcher(
            connection.default_channel.scheduler, UnrunJobReporter(teller), Ingest(app), RecurringCalls(app, teller)
        )
        dispatcher.start()
        for job in range(first, jobs, step):
            tally.apply_async((job,), affinity=TYPES[job % 5], priority=job % 11, on_demand=job % 7 == 0)
        print("published", flush=True)
        signal.pause()  # it ticks until it is ended


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
