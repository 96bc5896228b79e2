"""Breaks the Lua scripts on purpose, one line at a time, and asks the conformance test to notice: `make seeded-faults`.

The table is in `faults`; a fault names another test if random steps cannot meet it. A text that is not in its file
exactly once is an error: the script has changed, and the fault is to be written anew (`test_faults` fails at once).
"""

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue

import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.lua.library import assembled

from .faults import FAULTS, LUA, ROOT
from .machine import STEPS_IN_A_RUN, Conformance
from .walk import run
from .wire import Wire, walked

STEPS = int(os.environ.get("CONFORMANCE_STEPS", "10000"))

#: Faults that are tried at the same time.
AT_ONCE = os.cpu_count() or 1

#: Seeds to try: a fault that shows rarely is not found from every seed.
SEEDS = 4

_OPTIONS = ("-k", "valkey", "-q", "-p", "no:cacheprovider")

#: Time, s, after which a named test has failed: a fault may have it wait for ever.
_TIMEOUT_S = 60
_FAILED_AT = re.compile(r"failed at step (\d+);")


def main(words):
    """Try the faults, or those with one of *words* in file or text, and print the table. Return how many got away."""
    faults = [fault for fault in FAULTS if not words or any(word in " ".join(fault) for word in words)]
    for fault in faults:
        fault.broken()  # all texts are checked before the first fault takes its time
    failure = failure_of(assembled())
    if failure is not None:
        sys.exit("the scripts as they are fail:\n" + "\n".join((str(failure), *failure.__notes__)))
    with (
        tempfile.TemporaryDirectory() as directory,
        ProcessPoolExecutor(AT_ONCE, get_context("spawn")) as walkers,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(AT_ONCE):
            copies.put(_copy(Path(directory, f"copy{number}")))

        def in_a_copy(do, what):
            copy = copies.get()
            try:
                return do(copy, what)
            finally:
                copies.put(copy)

        def try_one(fault):
            found = in_a_copy(_found_by, fault) if fault.found_by else walkers.submit(_found_in_steps, fault).result()
            _print(fault, found)
            return found

        try:
            list(pool.map(partial(in_a_copy, _check_passes), {fault.found_by for fault in faults} - {""}))
            not_found = sum(found is None for found in pool.map(try_one, faults))
        finally:
            pool.shutdown(cancel_futures=True)
    print(f"{len(faults) - not_found} of {len(faults)} faults were found, with {SEEDS} seeds of {STEPS} steps")
    return not_found


def _print(fault, found):
    print(f"{fault.file:12} {found or 'not found':>10}  {_line(fault.old)}  ->  {_line(fault.new)}", flush=True)


def _line(text):
    return " ".join(text.split()) or "(nothing)"


# -- random steps


def _found_in_steps(fault):
    """Return in words where random steps met *fault*; None if they did not."""
    text = assembled({fault.file: fault.broken()})
    steps = (step_of_failure(text) for _ in range(SEEDS))
    return next((f"step {seed * STEPS + step}" for seed, step in enumerate(steps) if step is not None), None)


def step_of_failure(text):
    """Return the step at which the library with this *text* differs from the reference; None if no step does."""
    failure = failure_of(text)
    return None if failure is None else int(_FAILED_AT.search("".join(failure.__notes__))[1])


def failure_of(text):
    """Return the error by which the library with this *text* differs from the reference; None if no step does.

    Its notes say the step and the seed.
    """
    with (
        EmbeddedServer() as server,
        redis.Redis.from_url(server.url) as client,
        Wire(client, library=walked(text)) as wire,
    ):
        try:
            run(
                lambda: Conformance(wire, Counter()),
                steps=STEPS,
                steps_in_a_run=STEPS_IN_A_RUN,
                seed=random.randrange(2**32),
                shrink=False,
            )
        except Exception as error:  # any error is a find
            return error
    return None


# -- a named test, in a copy: it may start workers of its own


def _copy(directory):
    shutil.copytree(ROOT / "celery_affinity", directory / "celery_affinity")
    for part in ("tests", "docs"):  # fixtures read pages
        shutil.copytree(ROOT / part, directory / part)
    shutil.copy(ROOT / "pyproject.toml", directory)
    return directory


def _check_passes(copy, test):
    tried = _run(copy, test)
    if tried.returncode:
        sys.exit(f"{test} fails on the scripts as they are:\n{tried.stdout}{tried.stderr}")


def _found_by(copy, fault):
    """Break the script and return in words that its test noticed; None if the fault got away."""
    path = copy / LUA / f"{fault.file}.lua"
    whole = path.read_text()
    path.write_text(fault.broken())
    found = _run(copy, fault.found_by).returncode
    path.write_text(whole)
    return "by a test" if found else None


def _run(copy, test):
    """Run *test*. Anything but that it passed or failed ends the program."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", test, *_OPTIONS, "-o", f"timeout={_TIMEOUT_S}"]
    tried = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if tried.returncode not in (0, 1):
        sys.exit(f"{test} neither passed nor failed:\n{tried.stdout}{tried.stderr}")
    return tried


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
