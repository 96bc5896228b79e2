"""A trace in a file of JSON Lines: a header, then one object for each worker and each job."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import OptionError
from .trace import SCHEMA, Trace, TracedJob, TracedWorker


def read(path: Path) -> Trace:
    """Return the trace in the file *path*. Raises OptionError, which names the line, for what is none."""
    header: dict[str, Any] = {}
    workers, jobs = [], []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                kind = row.pop("row")
                if kind == "header":
                    header = row
                elif kind == "worker":
                    workers.append(TracedWorker(**{**row, "types": tuple(row["types"])}))
                elif kind == "job":
                    jobs.append(TracedJob(**row))
                else:
                    raise ValueError(f"row must be 'header', 'worker' or 'job', got: {kind!r}")
            except (ValueError, TypeError, KeyError, AttributeError) as exc:
                raise OptionError(f"line {number} of {path}: {exc}") from exc
    if header.pop("schema", None) != SCHEMA:
        raise OptionError(f"the first line of {path} must be the header of a trace, with schema {SCHEMA!r}")
    return Trace(**{**header, "workers": tuple(workers), "jobs": tuple(jobs), "paused": tuple(header["paused"])})


def write(trace: Trace, path: Path) -> None:
    """Write *trace* into the file *path*."""
    header = {"row": "header", "schema": SCHEMA, "length_us": trace.length_us, "settings": dict(trace.settings)}
    header |= {"paused": trace.paused, "recorded_at": trace.recorded_at, "versions": dict(trace.versions)}
    with path.open("w", encoding="utf-8") as out:
        rows = ({"row": "worker", **asdict(each)} for each in trace.workers)
        jobs = ({"row": "job", **asdict(each)} for each in trace.jobs)
        for row in (header, *rows):
            out.write(json.dumps(row) + "\n")
        for row in jobs:
            out.write(json.dumps(row) + "\n")
