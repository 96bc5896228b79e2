"""The full-text index: one SQLite file with FTS5. All index jobs write to it."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import log
from pathlib import Path
from typing import NamedTuple

from examples.pipeline.documents import Document

NAME = "index.sqlite"
KEYWORDS = 12
SHORTEST_KEYWORD = 5

#: The row id of a part is its document's id times PARTS plus its number, so a document's parts are one range of rows.
PARTS = 100_000

SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (id INTEGER PRIMARY KEY, path TEXT UNIQUE);
CREATE VIRTUAL TABLE IF NOT EXISTS parts USING fts5(part UNINDEXED, text);
CREATE VIRTUAL TABLE IF NOT EXISTS vocabulary USING fts5vocab(parts, 'row');
CREATE TABLE IF NOT EXISTS keywords (document INTEGER, word TEXT, weight REAL);
CREATE INDEX IF NOT EXISTS keywords_document ON keywords (document);
CREATE TABLE IF NOT EXISTS figures (document INTEGER, sheet TEXT, name TEXT, count INTEGER,
    total REAL, min REAL, max REAL);
"""


class Hit(NamedTuple):
    path: str
    part: str
    snippet: str


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    # Two workers can index at the same time: SQLite makes the second wait for the first.
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def create(path: Path) -> None:
    with _database(path) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(SCHEMA)


def add(path: Path, document: Document) -> int:
    """Add a document to the index, or replace it, and return the number of its parts."""
    words = Counter(
        word
        for _, text in document["parts"]
        for word in text.lower().split()
        if word.isalpha() and len(word) >= SHORTEST_KEYWORD
    )
    with _database(path) as database:
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT OR IGNORE INTO documents (path) VALUES (?)", [document["path"]])
        [number] = database.execute("SELECT id FROM documents WHERE path = ?", [document["path"]]).fetchone()
        database.execute("DELETE FROM parts WHERE rowid BETWEEN ? AND ?", [number * PARTS, number * PARTS + PARTS - 1])
        database.executemany(
            "INSERT INTO parts (rowid, part, text) VALUES (?, ?, ?)",
            [(number * PARTS + n, part, text) for n, (part, text) in enumerate(document["parts"])],
        )
        database.execute("DELETE FROM figures WHERE document = ?", [number])
        database.executemany(
            "INSERT INTO figures VALUES (:document, :sheet, :column, :count, :total, :min, :max)",
            [{"document": number, **figures} for figures in document["figures"]],
        )
        database.execute("DELETE FROM keywords WHERE document = ?", [number])
        database.executemany(
            "INSERT INTO keywords VALUES (?, ?, ?)", [(number, *pair) for pair in _keywords(database, words)]
        )
        database.execute("COMMIT")
    return len(document["parts"])


def _keywords(database: sqlite3.Connection, words: Counter[str]) -> list[tuple[str, float]]:
    """Return characteristic words of a document: frequent in it, and in few parts of the whole index (TF-IDF)."""
    [parts] = database.execute("SELECT count(*) FROM parts").fetchone()
    weights = {}
    for word, times in words.items():
        row = database.execute("SELECT doc FROM vocabulary WHERE term = ?", [word]).fetchone()
        weights[word] = times * log(1 + parts / (row[0] if row else 1))
    return sorted(weights.items(), key=lambda pair: (-pair[1], pair[0]))[:KEYWORDS]


def search(path: Path, text: str, limit: int = 8) -> list[Hit]:
    """Return the best part of each document that has all words of *text* in one part. [ ] mark the words."""
    query = " ".join('"' + word.replace('"', '""') + '"' for word in text.split())
    best: dict[str, Hit] = {}
    if not query:
        return []
    with _database(path) as database:
        rows = database.execute(
            "SELECT path, part, snippet(parts, 1, '[', ']', ' ... ', 14) FROM parts"
            " JOIN documents ON documents.id = parts.rowid / ? WHERE parts MATCH ? ORDER BY rank",
            [PARTS, query],
        )
        for document, part, snippet in rows:
            best.setdefault(document, Hit(document, part, " ".join(snippet.split())))
            if len(best) == limit:
                break
    return list(best.values())


def size(path: Path) -> list[int]:
    """Return the number of documents, of parts and of number columns in the index."""
    with _database(path) as database:
        tables = ("documents", "parts", "figures")
        return [database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]


def example_word(path: Path) -> str | None:
    """Return a keyword that many documents share, as an example for a search."""
    with _database(path) as database:
        row = database.execute(
            "SELECT word FROM keywords GROUP BY word ORDER BY count(*) DESC, sum(weight) DESC LIMIT 1"
        ).fetchone()
    return row[0] if row else None
