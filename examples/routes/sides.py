"""Runs the work on one side: starts the workers and the client, and waits until all changes are planned."""

import time
from pathlib import Path

from rich.console import Console

from examples.comparing import record
from examples.comparing.processes import Processes
from examples.comparing.program import BOOT_S, DemoError, delete_keys, watch
from examples.routes import books, work
from examples.routes.cities import all_cities
from examples.routes.measure import MERGED, SLOTS, WORKERS, Run

#: Name of the side (and its folder) -> title.
SIDES = {
    "affinity": "celery_affinity",
    "stock": "stock Celery",
    "lock": "stock Celery, a lock per city, a queue for users",
    MERGED: "celery_affinity, calls merged",
}

#: The sides that get the same changes. The merged side gets many more.
COMPARED = [side for side in SIDES if side != MERGED]

WORK = "work.json"

#: Minimum number of recurring runs on the merged side.
MIN_REPLANS = 3

#: The example gives up if the work has not ended within this multiple of the planned duration plus BOOT_S.
MAX_DURATION_FACTOR = 4


def run(console: Console, side: str, requests: list[work.Request], seconds: float, out: Path, url: str) -> Run:
    """Publish *requests* on one side, and return the records of its jobs."""
    result = Run(side, _fresh(out / side))
    keyprefix = f"celery-affinity-routes:{side}:{time.time_ns()}:"
    env = {"ROUTES_SIDE": side, "ROUTES_FOLDER": str(result.folder), "ROUTES_KEYPREFIX": keyprefix, "REDIS_URL": url}
    console.print(f"{list(SIDES).index(side) + 1} of {len(SIDES)}: {SIDES[side]} ...", markup=False, soft_wrap=True)
    queues = "users,route" if side == "lock" else "route"
    try:
        with Processes(result.folder, env) as processes:
            for name in WORKERS:
                worker = f"celery -A examples.routes.app worker -Q {queues} -c {SLOTS} -n {name}@routes -l INFO"
                processes.python(name, *worker.split(), "--without-mingle", "--without-gossip")
            if not watch(processes, result.follow, BOOT_S, lambda: result.ready >= set(WORKERS)):
                raise DemoError(f"The workers did not start within {BOOT_S:.0f} s; their logs are in {result.folder}")
            work.save(requests, result.folder / WORK)
            processes.python("client", "examples.routes.publish", str(result.folder / WORK))
            max_s = MAX_DURATION_FACTOR * seconds + BOOT_S
            watch(processes, result.follow, max_s, lambda: _is_done(result, len(requests)))
    finally:
        delete_keys(url, keyprefix)
    return result


def _is_done(result: Run, requests: int) -> bool:
    replans = sum(job.planned is not None for job in result.of_city(work.AT_REST))
    return not result.unfinished(requests) and (result.side != MERGED or replans >= MIN_REPLANS)


def _fresh(folder: Path) -> Path:
    """Create *folder* with new books, and delete the files of an earlier run in it, but no other files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (record.NAME, WORK, "client.log", *(f"{name}.log" for name in WORKERS)):
        (folder / name).unlink(missing_ok=True)
    for city in all_cities().values():
        books.create(folder, city)
    return folder.resolve()
