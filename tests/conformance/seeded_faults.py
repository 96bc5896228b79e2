"""Breaks the Lua scripts on purpose, one line at a time, and asks the conformance test to notice: `make seeded-faults`.

The table is in `faults`; a fault names another test if random steps cannot meet it. A text that is not in its file
exactly once is an error: the script has changed, and the fault is to be written anew (`test_faults` fails at once).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from .faults import FAULTS, LUA, ROOT

STEPS = int(os.environ.get("CONFORMANCE_STEPS", "10000"))

#: Faults that are tried at the same time, each in a copy of its own.
AT_ONCE = os.cpu_count() or 1

#: Seeds to try: a fault that shows rarely is not found from every seed.
SEEDS = 4

_CONFORMANCE = "tests/conformance/test_conformance.py"
_OPTIONS = ("-k", "valkey", "-q", "-p", "no:cacheprovider")

#: Time, s, after which another test than that one has failed: a fault may have it wait for ever.
_TIMEOUT_S = 60
_FAILED_AT = re.compile(r"failed at step (\d+);")


def main(words):
    """Try the faults, or those with one of *words* in file or text, and print the table. Return how many got away."""
    faults = [fault for fault in FAULTS if not words or any(word in " ".join(fault) for word in words)]
    for fault in faults:
        fault.broken()  # all texts are checked before the first fault takes its time
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(AT_ONCE) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(AT_ONCE):
            copies.put(_copy(Path(directory, f"copy{number}")))

        def in_a_copy(do, what):
            copy = copies.get()
            try:
                return do(copy, what)
            finally:
                copies.put(copy)

        try:
            tests = {fault.found_by or _CONFORMANCE for fault in faults}
            list(pool.map(partial(in_a_copy, _check_passes), tests))
            not_found = sum(found is None for found in pool.map(partial(in_a_copy, _try), faults))
        finally:
            pool.shutdown(cancel_futures=True)
    print(f"{len(faults) - not_found} of {len(faults)} faults were found, with {SEEDS} seeds of {STEPS} steps")
    return not_found


def _copy(directory):
    shutil.copytree(ROOT / "celery_affinity", directory / "celery_affinity")
    for part in ("tests", "docs"):  # fixtures read pages
        shutil.copytree(ROOT / part, directory / part)
    shutil.copy(ROOT / "pyproject.toml", directory)
    return directory


def _check_passes(copy, test):
    run = _run(copy, test)
    if run.returncode:
        sys.exit(f"{test} fails on the scripts as they are:\n{run.stdout}{run.stderr}")


def _try(copy, fault):
    """Break the script and say where the fault was found; None if it got away."""
    path = copy / LUA / f"{fault.file}.lua"
    whole = path.read_text()
    path.write_text(fault.broken())
    found = _found_by(copy, fault.found_by) if fault.found_by else _found_in_steps(copy)
    path.write_text(whole)
    print(f"{fault.file:12} {found or 'not found':>10}  {_line(fault.old)}  ->  {_line(fault.new)}", flush=True)
    return found


def _found_in_steps(copy):
    steps = (_found_at(copy) for _ in range(SEEDS))
    return next((f"step {seed * STEPS + step}" for seed, step in enumerate(steps) if step is not None), None)


def _found_by(copy, test):
    return "by a test" if _run(copy, test).returncode else None


def _found_at(copy):
    """Return the step at which the conformance test failed in the copy; None if it did not."""
    run = _run(copy, _CONFORMANCE)
    if run.returncode == 0:
        return None
    failed = _FAILED_AT.search(run.stdout)
    if not failed:
        sys.exit(f"the test did not come to its steps:\n{run.stdout}{run.stderr}")
    return int(failed.group(1))


def _run(copy, test):
    """Run *test*. Anything but that it passed or failed ends the program."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CONFORMANCE_STEPS": str(STEPS),
        "CONFORMANCE_SHRINK": "0",
    }
    timeout_s = 0 if test == _CONFORMANCE else _TIMEOUT_S
    command = [sys.executable, "-m", "pytest", test, *_OPTIONS, "-o", f"timeout={timeout_s}"]
    run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if run.returncode not in (0, 1):
        sys.exit(f"{test} neither passed nor failed:\n{run.stdout}{run.stderr}")
    return run


def _line(text):
    return " ".join(text.split()) or "(nothing)"


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
