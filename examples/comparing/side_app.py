"""Creates the Celery app of an example from the environment variables that `sides.processes_of` sets."""

import os
from pathlib import Path
from typing import NamedTuple

from celery import Celery, signals

from examples.comparing.ledger import Ledger
from examples.comparing.processes import die_with_parent

DOCUMENTS = Path(__file__).parent.parent / "documents"


class Side(NamedTuple):
    """One side of an example: its name, a folder of documents, and the ledger."""

    name: str
    docs: Path
    ledger: Ledger


def side(default: str) -> Side:
    """Return the side of this process. *default*: name of the side if the example did not start this process."""
    folder = Path(os.environ.get("EXAMPLE_FOLDER", "demo-output"))
    return Side(
        os.environ.get("EXAMPLE_SIDE", default), Path(os.environ.get("EXAMPLE_DOCS", DOCUMENTS)), Ledger(folder)
    )


def app_of(example: str, ledger: Ledger) -> Celery:
    """Return an app whose workers write "ready" into the ledger, and stop with the example."""
    app = Celery(example, broker=os.environ.get("REDIS_URL", "redis://localhost"), set_as_current=False)
    app.conf.update(
        broker_transport="celery_affinity:Transport",
        broker_transport_options={"global_keyprefix": os.environ.get("EXAMPLE_KEYPREFIX", "")},
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
    )
    signals.worker_ready.connect(lambda **_: ledger.note("ready", str(os.getpid()), 0), weak=False)
    signals.worker_process_init.connect(lambda **_: die_with_parent(), weak=False)
    return app
