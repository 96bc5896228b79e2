"""Runs the work on one side: starts its workers and its client, watches until all is planned."""

import time
from pathlib import Path

from rich.console import Console

from examples.comparing import record
from examples.comparing.processes import Processes
from examples.comparing.program import BOOT_S, DemoError, forget, watch
from examples.routes import books, work
from examples.routes.cities import all_cities
from examples.routes.measure import MERGED, SLOTS, WORKERS, Run

#: The sides: the name of the folder, the title.
SIDES = {
    "affinity": "celery_affinity",
    "stock": "stock Celery",
    "lock": "stock Celery, a lock for each city, a queue for users",
    MERGED: "celery_affinity, calls merged",
}

#: Those that get the same changes. Many more come where calls merge.
COMPARED = [side for side in SIDES if side != MERGED]

WORK = "work.json"

#: Where calls merge, the city that nobody changes is to be planned again at least so many times.
LEAST_AGAIN = 3

#: Work that has not ended after so many times the planned duration, and half a minute, is given up.
PATIENCE = 4


def run(console: Console, side: str, requests: list[work.Request], seconds: float, out: Path, url: str) -> Run:
    """Return what happened when *requests* came on one side."""
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
            patience_s = PATIENCE * seconds + BOOT_S
            watch(processes, result.follow, patience_s, lambda: _is_done(result, len(requests)))
    finally:
        forget(url, keyprefix)
    return result


def _is_done(result: Run, requests: int) -> bool:
    again = sum(job.planned is not None for job in result.of_city(work.AT_REST))
    return not result.unfinished(requests) and (result.side != MERGED or again >= LEAST_AGAIN)


def _fresh(folder: Path) -> Path:
    """Make *folder*, with new books, and remove what an earlier run of the example left there, but nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (record.NAME, WORK, "client.log", *(f"{name}.log" for name in WORKERS)):
        (folder / name).unlink(missing_ok=True)
    for city in all_cities().values():
        books.new(folder, city)
    return folder.resolve()
