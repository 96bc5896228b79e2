"""The Celery app: a task that searches a collection of documents, and builds its index first if it is not in memory."""

from collections import defaultdict
from contextlib import suppress
from fnmatch import fnmatch

from celery_affinity import Affinity
from examples.comparing.side_app import app_of, side
from examples.pipeline import documents

#: Collection -> the names of its documents, and a word that is asked for.
COLLECTIONS = {
    "reports": ("annual-report-*", "revenue"),
    "manuals": ("manual-*", "calibration"),
    "tides": ("tide-*", "salinity"),
    "stock": ("s[at][lo]*-*.xlsx", "gauge"),
}

#: The sides -> what each is called.
SIDES = {"plain": "without hints", "hints": "hints, and a bonus of 80"}

SIDE, DOCS, ledger = side("hints")

app = app_of("locality", ledger)
app.conf.affinity_locality_bonus = 80 if SIDE == "hints" else 0

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
