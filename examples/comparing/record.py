"""Records the events of each job, with celery_affinity and stock Celery alike: one JSON line per event.

All processes append to the same file. A line is appended by one write, so lines never mix. Times are Unix seconds.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from celery import Task, signals

NAME = "records.jsonl"

#: (task name, args, kwargs) -> the job's type, and a short text that identifies the job in reports.
Describe = Callable[[str, Sequence[Any], Mapping[str, Any]], tuple[str, str]]

_folder: Path | None = None
_describe: Describe = lambda name, args, kwargs: (name, "")  # noqa: E731 - until `enable` replaces it


def enable(folder: Path, describe: Describe) -> None:
    """Record events in *folder*. If it does not exist (the app runs outside the example), nothing is recorded."""
    global _folder, _describe
    _folder = folder if folder.is_dir() else None
    _describe = describe


def write(event: str, **fields: Any) -> None:
    if _folder is None:
        return
    file = os.open(_folder / NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps({"event": event, "at": time.time(), **fields}).encode() + b"\n")
    finally:
        os.close(file)


@signals.before_task_publish.connect
def _published(sender: str, headers: dict[str, Any], body: Any, **_: Any) -> None:
    type_, about = _describe(sender, *body[:2])
    mode = headers.get("mode", "queued")
    write("published", id=headers["id"], root=headers["root_id"], type=type_, mode=mode, about=about)


@signals.worker_ready.connect
def _ready(sender: Any, **_: Any) -> None:
    write("ready", worker=sender.hostname)


@signals.task_prerun.connect
def _started(task_id: str, task: Task, **_: Any) -> None:
    write("started", id=task_id, worker=task.request.hostname, pid=os.getpid())


@signals.task_postrun.connect
def _ended(task_id: str, state: str, retval: Any, **_: Any) -> None:
    write("ended", id=task_id, state=state, error=str(retval)[:300] if isinstance(retval, Exception) else None)
