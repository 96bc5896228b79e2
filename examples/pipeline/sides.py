"""Runs the plan on one side: starts its workers and its client, watches until the work is done."""

import time
from collections.abc import Callable
from pathlib import Path

import redis
from rich.console import Console

from examples.pipeline import index, record
from examples.pipeline.documents import type_of
from examples.pipeline.measure import WORKERS, Run
from examples.pipeline.plan import Plan
from examples.pipeline.processes import Processes
from examples.pipeline.progress import Progress

#: The sides: the name of the folder, the title.
SIDES = {"affinity": "celery_affinity", "stock": "stock Celery"}

PLAN = "plan.json"

BOOT_S = 30.0

#: Work that has not ended after so many times the planned duration, and half a minute, is given up.
PATIENCE = 2.5


class DemoError(Exception):
    """The demo cannot go on; the message is for a person."""


def run(console: Console, side: str, plan: Plan, seconds: float, out: Path, url: str) -> Run:
    """Return what happened when *plan* ran on one side."""
    result = Run(side, _fresh(out / side))
    keyprefix = f"celery-affinity-demo:{side}:{time.time_ns()}:"
    env = {"DEMO_TRANSPORT": side, "DEMO_FOLDER": str(result.folder), "DEMO_KEYPREFIX": keyprefix, "REDIS_URL": url}
    extracts = [type_of(Path(request.path)) for request in plan.requests]
    expected = {"pdf": extracts.count("pdf"), "excel": extracts.count("excel"), "index": len(extracts)}
    title = f"{list(SIDES).index(side) + 1} of {len(SIDES)}: {SIDES[side]}"
    try:
        with Processes(result.folder, env) as processes, Progress(console, result, title, expected) as progress:
            for worker, types in WORKERS.items():
                processes.python(
                    worker,
                    "celery",
                    "-A",
                    "examples.pipeline.app",
                    "worker",
                    "-Q",
                    ",".join(types),
                    "-c",
                    "1",
                    "-n",
                    f"{worker}@demo",
                    "-l",
                    "INFO",
                    "--without-mingle",
                    "--without-gossip",
                )
            if not _watch(processes, progress, result, BOOT_S, lambda: result.ready >= set(WORKERS)):
                raise DemoError(f"The workers did not start within {BOOT_S:.0f} s; their logs are in {result.folder}")
            plan.save(result.folder / PLAN)
            processes.python("client", "examples.pipeline.publish", str(result.folder / PLAN))
            _watch(
                processes,
                progress,
                result,
                PATIENCE * seconds + BOOT_S,
                lambda: not result.unfinished(len(plan.requests)),
            )
    finally:
        _forget(url, keyprefix)
    return result


def _watch(processes: Processes, progress: Progress, result: Run, patience_s: float, done: Callable[[], bool]) -> bool:
    """Follow the run until it is *done*, and return whether it was before the patience ended."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        result.follow()
        progress.show()
        if done():
            return True
        if name := processes.failed():
            raise DemoError(
                f"The process '{name}' has ended: {_last_line(processes.log(name))}\nIts log is {processes.log(name)}"
            )
        time.sleep(0.1)
    return False


def _fresh(folder: Path) -> Path:
    """Make *folder*, and remove what an earlier run of the demo left there, but nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [
        record.NAME,
        PLAN,
        index.NAME,
        f"{index.NAME}-wal",
        f"{index.NAME}-shm",
        "client.log",
        *(f"{w}.log" for w in WORKERS),
    ]
    for name in names:
        (folder / name).unlink(missing_ok=True)
    index.create(folder / index.NAME)
    return folder.resolve()


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it wrote nothing"


def _forget(url: str, keyprefix: str) -> None:
    """Remove the demo's keys; the server may be the user's own."""
    try:
        with redis.Redis.from_url(url) as client:
            for key in client.scan_iter(f"{keyprefix}*", count=1000):
                client.unlink(key)
    except redis.RedisError:
        pass  # the server ended with the demo
