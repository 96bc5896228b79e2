"""`python -m examples.locality`, run as a user runs it, on three collections of one short document each."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from celery_affinity.options.keys import Locality
from examples.comparing.ledger import Ledger
from examples.locality import app

DOCUMENTS = Path(__file__).parents[2] / "examples" / "documents"


def test_each_collection_contains_its_search_word():
    for name, (_, word) in app.COLLECTIONS.items():
        if name != "reports":  # two seconds
            assert app.build(name).get(word), name
    assert app.ask.affinity.locality == Locality("index:{collection}")


def test_hints_make_workers_reuse_their_index(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("manual-fg-5.pdf", "tide-station-april-2024.xlsx", "sales-2024.xlsx"):
        shutil.copy(DOCUMENTS / name, docs)
    words = ["--docs", docs, "--out", tmp_path, "--calls", "40", "--sides", "hints"]
    env = {name: value for name, value in os.environ.items() if name != "REDIS_URL"} | {"COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, "-m", "examples.locality", *map(str, words)],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ledger = Ledger(tmp_path / "hints")
    built = ledger.notes("built")
    assert len(ledger.notes("answered")) == 40
    # Without hints some three of four questions are about another collection than the worker's last one.
    assert len(app.COLLECTIONS) <= len(built) <= 20
    assert f"{40 - len(built)}" in done.stdout
