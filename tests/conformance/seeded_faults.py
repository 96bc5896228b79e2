"""Breaks the Lua scripts on purpose, one line at a time, and asks the conformance test to notice: `make seeded-faults`.

The table is in `faults`. A text that is not in its file exactly once is an error: the script has changed, and the fault
is to be written anew (`test_faults` says so at once).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .faults import FAULTS, LUA, ROOT

STEPS = int(os.environ.get("CONFORMANCE_STEPS", "10000"))

#: A fault that shows rarely is not found from every seed.
SEEDS = 4

_TEST = (
    "-m",
    "pytest",
    "tests/conformance/test_conformance.py",
    "-k",
    "valkey",
    "-q",
    "-p",
    "no:cacheprovider",
    "-o",
    "timeout=0",
)
_FAILED_AT = re.compile(r"failed at step (\d+);")


def main(words):
    """Try the faults, or those with one of *words* in file or text, and print the table. Return how many got away."""
    faults = [fault for fault in FAULTS if not words or any(word in " ".join(fault) for word in words)]
    for fault in faults:
        fault.broken()  # all are looked for before the first one takes its time
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory, "copy")
        shutil.copytree(ROOT / "celery_affinity", copy / "celery_affinity")
        for part in ("tests", "docs"):  # fixtures read pages
            shutil.copytree(ROOT / part, copy / part)
        shutil.copy(ROOT / "pyproject.toml", copy)
        if _found_at(copy) is not None:
            sys.exit("the test fails on the scripts as they are")
        not_found = sum(_try(copy, fault) is None for fault in faults)
    print(f"{len(faults) - not_found} of {len(faults)} faults were found, with {SEEDS} seeds of {STEPS} steps")
    return not_found


def _try(copy, fault):
    path = copy / LUA / f"{fault.file}.lua"
    whole = path.read_text()
    path.write_text(fault.broken())
    steps = (_found_at(copy) for _ in range(SEEDS))
    step = next((seed * STEPS + step for seed, step in enumerate(steps) if step is not None), None)
    path.write_text(whole)
    found = "not found" if step is None else f"step {step}"
    print(f"{fault.file:12} {found:>10}  {_line(fault.old)}  ->  {_line(fault.new)}", flush=True)
    return step


def _found_at(copy):
    """Return the step that failed in the copy; None if none did."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CONFORMANCE_STEPS": str(STEPS),
        "CONFORMANCE_SHRINK": "0",
    }
    run = subprocess.run(
        [sys.executable, *_TEST], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    if run.returncode == 0:
        return None
    failed = _FAILED_AT.search(run.stdout)
    if not failed:
        sys.exit(f"the test did not come to its steps:\n{run.stdout}{run.stderr}")
    return int(failed.group(1))


def _line(text):
    return " ".join(text.split()) or "(nothing)"


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
