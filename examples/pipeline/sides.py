"""Runs the plan on one side: starts the workers and the client, and waits until the work is done."""

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from examples.comparing import record
from examples.comparing.processes import Processes
from examples.comparing.program import BOOT_S, DemoError, delete_keys, watch
from examples.pipeline import index
from examples.pipeline.documents import type_of
from examples.pipeline.measure import WORKERS, Run
from examples.pipeline.plan import Plan
from examples.pipeline.progress import Progress

#: Name of the side (and its folder) -> title.
SIDES = {"affinity": "celery_affinity", "stock": "stock Celery"}

PLAN = "plan.json"

#: The example gives up if the work has not ended within this multiple of the planned duration plus BOOT_S.
MAX_DURATION_FACTOR = 2.5


def run(
    console: Console,
    side: str,
    plan: Plan,
    seconds: float,
    out: Path,
    url: str,
    on_poll: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Run *plan* on one side, and return the records of its jobs. *on_poll* is called several times a second."""
    result = Run(side, _fresh(out / side))
    keyprefix = f"celery-affinity-demo:{side}:{time.time_ns()}:"
    env = {"DEMO_TRANSPORT": side, "DEMO_FOLDER": str(result.folder), "DEMO_KEYPREFIX": keyprefix, "REDIS_URL": url}
    extracts = [type_of(Path(request.path)) for request in plan.requests]
    expected = {"pdf": extracts.count("pdf"), "excel": extracts.count("excel"), "index": len(extracts)}
    title = f"{list(SIDES).index(side) + 1} of {len(SIDES)}: {SIDES[side]}" if "cluster" not in url else SIDES[side]
    try:
        with Processes(result.folder, env) as processes, Progress(console, result, title, expected) as progress:

            def follow() -> None:
                result.follow()
                progress.show()
                on_poll(result)

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
            if not watch(processes, follow, BOOT_S, lambda: result.ready >= set(WORKERS)):
                raise DemoError(f"The workers did not start within {BOOT_S:.0f} s; their logs are in {result.folder}")
            plan.save(result.folder / PLAN)
            processes.python("client", "examples.pipeline.publish", str(result.folder / PLAN))
            max_s = MAX_DURATION_FACTOR * seconds + BOOT_S
            watch(processes, follow, max_s, lambda: not result.unfinished(len(plan.requests)))
    finally:
        if "cluster" not in url:  # the example starts its own cluster, and stops it at the end
            delete_keys(url, keyprefix)
    return result


def _fresh(folder: Path) -> Path:
    """Create *folder*, and delete the files of an earlier demo in it, but no other files."""
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
