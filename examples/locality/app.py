"""The Celery app: a task that searches a collection of documents, and first builds its index if necessary."""

from collections import defaultdict
from contextlib import suppress
from fnmatch import fnmatch

from celery_affinity import Affinity
from examples.comparing.side_app import app_of, side
from examples.pipeline import documents

#: Collection -> pattern of its file names, and a word to search.
COLLECTIONS = {
    "reports": ("annual-report-*", "revenue"),
    "manuals": ("manual-*", "calibration"),
    "tides": ("tide-*", "salinity"),
    "stock": ("s[at][lo]*-*.xlsx", "gauge"),
}

#: Name of the side -> title.
SIDES = {"plain": "without hints", "hints": "hints, and a bonus of 80"}

SIDE, DOCS, ledger = side("hints")

app = app_of("locality", ledger)
app.conf.affinity_locality_bonus = 80 if SIDE == "hints" else 0

#: The index in the memory of this process, by collection. It has at most one entry.
_memory: dict[str, dict[str, set[str]]] = {}


def build(collection: str) -> dict[str, set[str]]:
    """Return the index of a collection: word -> the pages and sheets that contain it."""
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
    places = _memory[collection].get(word, set())
    ledger.note("answered", collection, number)
    return sorted(places)
