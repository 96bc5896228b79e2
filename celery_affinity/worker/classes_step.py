"""The bootstep of a worker that derives the classes of its consumer and of its pool, before either is made."""

from typing import Any

from celery import bootsteps
from celery.worker import WorkController
from kombu.utils.imports import symbol_by_name

from . import fleet_consumer, fleet_pool


class ClassesStep(bootsteps.Step):
    """Derives from the classes that the settings `worker_consumer` and `worker_pool` name, or the command line.

    Celery makes all steps of a worker before the first of them creates anything. It has imported the class of the pool
    by then, and no sooner than the handlers of `worker_init` have run, since some of them patch the process for it.
    """

    name = "affinity classes"

    def __init__(self, worker: WorkController, **kwargs: Any) -> None:
        worker.consumer_cls = fleet_consumer.derived(symbol_by_name(worker.consumer_cls))
        worker.pool_cls = fleet_pool.derived(worker.pool_cls)
        super().__init__(worker, **kwargs)
