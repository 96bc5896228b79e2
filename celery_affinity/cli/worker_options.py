"""Options that `celery worker` takes besides its own.

``app.user_options`` is Celery's place for such options, but belongs to one app, which does not exist yet when `celery`
loads our commands. So the command gets here what it would take from there.
"""

import click
from celery.bin.worker import worker

from ..rules.worker_priority import LARGEST

PRIORITY = click.Option(
    ["--affinity-priority"],
    type=click.IntRange(-LARGEST, LARGEST),
    envvar="CELERY_AFFINITY_PRIORITY",
    help='celery_affinity: priority of this worker among equally specialised ones, with affinity_placement="weighted". '
    "By default the worker with the lower number is preferred.",
)


def add() -> None:
    """Have `celery worker` take our options."""
    if PRIORITY not in worker.params:
        worker.params.append(PRIORITY)
