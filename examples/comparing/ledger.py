"""Files outside of Redis that record each document a task has read, and the checkpoints of tasks."""

import json
import os
import time
from pathlib import Path


class Ledger:
    """Reads and writes the files in *folder*. Each line is one write, so lines of several processes do not mix."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, event: str, who: str, number: int) -> None:
        line = json.dumps({"event": event, "who": who, "number": number, "at": time.time()}) + "\n"
        descriptor = os.open(self.folder / "ledger.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def notes(self, event: str) -> list[dict]:
        path = self.folder / "ledger.jsonl"
        notes = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [note for note in notes if note["event"] == event]

    def checkpoint(self, job: str) -> int:
        path = self.folder / f"{job}.checkpoint"
        return int(path.read_text()) if path.exists() else 0

    def save(self, job: str, number: int) -> None:
        """Replace the checkpoint atomically: the process can be killed in the middle of a write."""
        new = self.folder / f"{job}.new"
        new.write_text(str(number))
        new.replace(self.folder / f"{job}.checkpoint")
