"""Writes down what happens to each job: one JSON line per event, from every process, the same on both sides.

Times are Unix seconds of this host. A line is shorter than a page and written at once, so lines never mix.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Task, signals

NAME = "records.jsonl"

_folder: Path | None = None


def to(folder: Path) -> None:
    """Choose where to; without a folder (the app is used outside the demo) nothing is written."""
    global _folder
    _folder = folder if folder.is_dir() else None


def _write(event: str, **fields: Any) -> None:
    if _folder is None:
        return
    file = os.open(_folder / NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps({"event": event, "at": time.time(), **fields}).encode() + b"\n")
    finally:
        os.close(file)


@signals.before_task_publish.connect
def _published(sender: str, headers: dict[str, Any], **_: Any) -> None:
    type_ = sender.partition(".")[0]
    _write("published", id=headers["id"], root=headers["root_id"], type=type_, mode=headers.get("mode", "queued"))


@signals.worker_ready.connect
def _ready(sender: Any, **_: Any) -> None:
    _write("ready", worker=sender.hostname)


@signals.task_prerun.connect
def _started(task_id: str, task: Task, args: list[Any], **_: Any) -> None:
    path = args[0] if isinstance(args[0], str) else args[0]["path"]
    _write("started", id=task_id, worker=task.request.hostname, pid=os.getpid(), document=Path(path).name)


@signals.task_postrun.connect
def _ended(task_id: str, state: str, retval: Any, **_: Any) -> None:
    _write("ended", id=task_id, state=state, error=str(retval)[:300] if isinstance(retval, Exception) else None)
