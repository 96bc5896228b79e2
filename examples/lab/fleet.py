"""Runs the fleet through the plan, and records it by `lab record`."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from celery_affinity.lab import trace_file
from celery_affinity.lab.trace import Trace
from examples.comparing import record
from examples.comparing.processes import Processes
from examples.comparing.program import BOOT_S, DemoError, forget, watch
from examples.lab import plan
from examples.lab.plan import HEARTBEAT_S

#: Work that has not ended after so many times the planned duration, and half a minute, is given up.
PATIENCE, LEAST_PATIENCE_S = 3.0, 30.0

#: Longest time, s, for which the recorder waits for the last claims, and for which a command may take.
END_S = 60.0

AFFINITY = ("celery", "-A", "examples.lab.app", "affinity")

Workers = Mapping[str, tuple[str, int]]


def recorded(
    folder: Path, url: str, calls: Sequence[plan.Call], length_s: float, workers: Workers, settings: Sequence[str] = ()
) -> Trace:
    """Return the trace of *workers* (name -> types, slots) that do what *calls* ask for.

    *settings*: names and values for `affinity settings set`. Raises DemoError if the work does not end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / record.NAME).unlink(missing_ok=True)
    plan.save(list(calls), folder / "plan.json")
    keyprefix = f"celery-affinity-demo:lab:{time.time_ns()}:"
    env = {"LAB_FOLDER": str(folder), "LAB_KEYPREFIX": keyprefix, "REDIS_URL": url}
    most_s = PATIENCE * length_s + LEAST_PATIENCE_S
    try:
        with Processes(folder, env) as processes:
            _start(processes, workers)
            if settings:
                processes.python("settings", *AFFINITY, "settings", "set", *settings)
                _ended(processes, "settings", terminate=False)
            words = f"lab record --for {most_s + END_S:.0f}s --output".split()
            processes.python("record", *AFFINITY, *words, str(folder / "trace.jsonl"))
            if not watch(processes, lambda: None, BOOT_S, lambda: _is_on(processes)):
                raise DemoError(
                    f"The recorder did not start within {BOOT_S:.0f} s; its log is {processes.log('record')}"
                )
            time.sleep(2 * HEARTBEAT_S)  # all workers have noticed
            processes.python("publish", "examples.lab.publish", str(folder / "plan.json"))
            if not watch(processes, lambda: None, most_s, lambda: _count(folder, "ended") >= len(calls)):
                raise DemoError(f"The work did not end within {most_s:.0f} s; the logs are in {folder}")
            _ended(processes, "record", terminate=True)
    finally:
        forget(url, keyprefix)
    return trace_file.read_trace(folder / "trace.jsonl")


def _start(processes: Processes, workers: Workers) -> None:
    for name, (types, slots) in workers.items():
        command = f"celery -A examples.lab.app worker -Q {types} -c {slots} -n {name}@demo -l WARNING"
        processes.python(name, *command.split(), "--without-mingle", "--without-gossip")
    if not watch(processes, lambda: None, BOOT_S, lambda: _count(processes.folder, "ready") == len(workers)):
        raise DemoError(f"The workers did not start within {BOOT_S:.0f} s; their logs are in {processes.folder}")


def _ended(processes: Processes, name: str, *, terminate: bool) -> None:
    if processes.end(name, END_S, terminate=terminate) != 0:
        raise DemoError(f"The process '{name}' did not end as it should; its log is {processes.log(name)}")


def _is_on(processes: Processes) -> bool:
    """Whether the recorder has begun: it says so as the first thing that it writes."""
    return "recording" in processes.log("record").read_text(encoding="utf-8")


def _count(folder: Path, event: str) -> int:
    path = folder / record.NAME
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return sum(json.loads(line)["event"] == event for line in lines)
