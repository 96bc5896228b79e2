"""The Celery app: a task that searches a collection of documents, and builds its index first if it is not in memory."""

import os
from collections import defaultdict
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from celery import Celery, signals

from celery_affinity import Affinity
from examples.pipeline import documents
from examples.preemption.ledger import Ledger

#: Collection -> the names of its documents, and a word that is asked for.
COLLECTIONS = {
    "reports": ("annual-report-*", "revenue"),
    "manuals": ("manual-*", "calibration"),
    "tides": ("tide-*", "salinity"),
    "stock": ("s[at][lo]*-*.xlsx", "gauge"),
}

#: The sides -> what each is called.
SIDES = {"plain": "without hints", "hints": "hints, and a bonus of 80"}

SIDE = os.environ.get("LOCALITY_SIDE", "hints")
DOCS = Path(os.environ.get("LOCALITY_DOCS", Path(__file__).parent.parent / "documents"))
ledger = Ledger(Path(os.environ.get("LOCALITY_FOLDER", "demo-output")))

app = Celery("locality", broker=os.environ.get("REDIS_URL", "redis://localhost"), set_as_current=False)
app.conf.update(
    broker_transport="celery_affinity:Transport",
    broker_transport_options={"global_keyprefix": os.environ.get("LOCALITY_KEYPREFIX", "")},
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    affinity_locality_bonus=80 if SIDE == "hints" else 0,
)
signals.worker_ready.connect(lambda **_: ledger.note("ready", str(os.getpid()), 0), weak=False)

#: The index that this process has: there is room for one.
_memory: dict[str, dict[str, set[str]]] = {}


def build(collection: str) -> dict[str, set[str]]:
    """Return word -> the pages and sheets of the collection that have it."""
    index = defaultdict(set)
    for path in documents.find(DOCS)[0]:
        if fnmatch(path.name, COLLECTIONS[collection][0]):
            with suppress(documents.UnreadableError):
                for part, text in documents.read(path)["parts"]:
                    for word in text.lower().split():
                        index[word].add(f"{path.name}, {part}")
    return index


@app.task(
    name="locality.ask",
    acks_late=True,
    affinity=Affinity("questions", locality="index:{collection}" if SIDE == "hints" else None),
)
def ask(number, collection, word):
    if collection not in _memory:
        ledger.note("built", collection, number)
        _memory.clear()
        _memory[collection] = build(collection)
    found = _memory[collection].get(word, set())
    ledger.note("answered", collection, number)
    return sorted(found)
