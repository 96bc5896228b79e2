"""Runs a plan on the fleet while `lab record` records it."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from celery_affinity.lab import trace_file
from celery_affinity.lab.trace import Trace
from examples.comparing import record
from examples.comparing.processes import Processes
from examples.comparing.program import BOOT_S, DemoError, delete_keys, watch
from examples.lab import plan
from examples.lab.plan import HEARTBEAT_S

#: The example gives up if the work has not ended within this multiple of the planned duration, plus EXTRA_S seconds.
MAX_DURATION_FACTOR, EXTRA_S = 3.0, 30.0

#: Maximum number of seconds for a command, and for the recorder to wait for the last claims.
END_S = 60.0

AFFINITY = ("celery", "-A", "examples.lab.app", "affinity")

Workers = Mapping[str, tuple[str, int]]


def record_run(
    folder: Path, url: str, calls: Sequence[plan.Call], length_s: float, workers: Workers, settings: Sequence[str] = ()
) -> Trace:
    """Publish *calls* for *workers* (name -> types, number of slots), and return the recorded trace.

    *settings*: arguments of `affinity settings set`, names and values in turn. Raises DemoError if the work does not
    end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / record.NAME).unlink(missing_ok=True)
    plan.save(list(calls), folder / "plan.json")
    keyprefix = f"celery-affinity-demo:lab:{time.time_ns()}:"
    env = {"LAB_FOLDER": str(folder), "LAB_KEYPREFIX": keyprefix, "REDIS_URL": url}
    max_s = MAX_DURATION_FACTOR * length_s + EXTRA_S
    try:
        with Processes(folder, env) as processes:
            _start(processes, workers)
            if settings:
                processes.python("settings", *AFFINITY, "settings", "set", *settings)
                _check_end(processes, "settings", terminate=False)
            arguments = f"lab record --for {max_s + END_S:.0f}s --output".split()
            processes.python("record", *AFFINITY, *arguments, str(folder / "trace.jsonl"))
            if not watch(processes, lambda: None, BOOT_S, lambda: _is_recording(processes)):
                raise DemoError(
                    f"The recorder did not start within {BOOT_S:.0f} s; its log is {processes.log('record')}"
                )
            time.sleep(2 * HEARTBEAT_S)  # until all workers have noticed the recording
            processes.python("publish", "examples.lab.publish", str(folder / "plan.json"))
            if not watch(processes, lambda: None, max_s, lambda: _count(folder, "ended") >= len(calls)):
                raise DemoError(f"The work did not end within {max_s:.0f} s; the logs are in {folder}")
            _check_end(processes, "record", terminate=True)
    finally:
        delete_keys(url, keyprefix)
    return trace_file.read_trace(folder / "trace.jsonl")


def _start(processes: Processes, workers: Workers) -> None:
    for name, (types, slots) in workers.items():
        command = f"celery -A examples.lab.app worker -Q {types} -c {slots} -n {name}@demo -l WARNING"
        processes.python(name, *command.split(), "--without-mingle", "--without-gossip")
    if not watch(processes, lambda: None, BOOT_S, lambda: _count(processes.folder, "ready") == len(workers)):
        raise DemoError(f"The workers did not start within {BOOT_S:.0f} s; their logs are in {processes.folder}")


def _check_end(processes: Processes, name: str, *, terminate: bool) -> None:
    if processes.wait_for_end(name, END_S, terminate=terminate) != 0:
        raise DemoError(f"The process '{name}' failed or did not end; its log is {processes.log(name)}")


def _is_recording(processes: Processes) -> bool:
    """Return True if the recorder has started: its first output contains "recording"."""
    return "recording" in processes.log("record").read_text(encoding="utf-8")


def _count(folder: Path, event: str) -> int:
    path = folder / record.NAME
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return sum(json.loads(line)["event"] == event for line in lines)
