"""Run the pipeline on six nodes, and kill the primary that stores the jobs in the middle of the run.

python -m examples.cluster [--docs FOLDER]
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console

from celery_affinity.embedded import EmbeddedCluster
from celery_affinity.schema.keys import Keys
from examples.comparing import program, record
from examples.comparing.program import DemoError
from examples.pipeline import OUTPUT, documents, plan, sides
from examples.pipeline.measure import Run

DOCUMENTS = Path(__file__).parent.parent / "documents"

#: Any key of the fleet. All keys have the same hash tag, so one node stores all of them.
KEY = Keys().base


def main() -> int:
    options = _options()
    console = Console(highlight=False)
    return program.run(console, lambda: _demo(console, options.docs, options.out, options.seconds))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.cluster", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--docs", type=Path, default=DOCUMENTS, help="a folder of documents (default: the example's)")
    parser.add_argument("--out", type=Path, default=OUTPUT, help="folder for the results (default: demo-output)")
    parser.add_argument("--seconds", type=float, default=20.0, help="planned duration of the work (default: 20)")
    return parser.parse_args()


class PrimaryKiller:
    """Kills the primary that stores the jobs with SIGKILL when half of the chains are done.

    `killed_at` and `replaced_at` are Unix seconds: when the primary was killed, and when a replica had taken over.
    """

    def __init__(self, cluster: EmbeddedCluster, chains: int) -> None:
        self._cluster = cluster
        self._chains = chains
        self.killed_at: float | None = None
        self.replaced_at: float | None = None

    def check(self, run: Run) -> None:
        ended = sum(job.type == "index" and job.ended is not None for job in run.jobs.values())
        if self.killed_at is None and ended >= self._chains / 2:
            self._owner = self._cluster.owner_of(KEY)
            if self._owner is not None:
                self._owner.kill()
                self.killed_at = time.time()
        elif self.killed_at is not None and self.replaced_at is None and self._cluster.owner_of(KEY) is not None:
            self.replaced_at = time.time()


def _demo(console: Console, folder: Path, out: Path, seconds: float) -> int:
    paths, _ = documents.find(folder) if folder.is_dir() else ([], [])
    if not paths:
        raise DemoError(f"{folder}: no documents here.")
    work = plan.make(paths, seconds)
    console.print(f"{len(work.requests)} chains of two tasks, on four workers and six nodes.")
    with EmbeddedCluster() as cluster:
        _show_nodes(console, cluster)
        killer = PrimaryKiller(cluster, len(work.requests))
        run = sides.run(console, "affinity", work, seconds, out, cluster.url, on_poll=killer.check)
        _show_nodes(console, cluster)
    return _report(console, run, killer, len(work.requests))


def _show_nodes(console: Console, cluster: EmbeddedCluster) -> None:
    owner = cluster.owner_of(KEY)
    for node in cluster.nodes:
        state = "primary" if node.is_running and node.is_primary else "replica" if node.is_running else "dead"
        console.print(f"  {node.port}  {state}{', stores all jobs' if node is owner else ''}")


def _report(console: Console, run: Run, killer: PrimaryKiller, chains: int) -> int:
    if killer.killed_at is None or killer.replaced_at is None:
        console.print("The work ended before a replica had taken over: choose more --seconds.", style="red")
        return 1
    starts = Counter(
        event["id"]
        for event in map(json.loads, (run.folder / record.NAME).read_text(encoding="utf-8").splitlines())
        if event["event"] == "started"
    )
    later_starts = [
        job.started for job in run.jobs.values() if job.started is not None and job.started > killer.replaced_at
    ]
    lost, twice = run.unfinished(chains), sum(count > 1 for count in starts.values())
    console.print(f"\nThe primary was killed {killer.killed_at - run.began:.1f} s after the first call.")
    console.print(f"A replica took over {killer.replaced_at - killer.killed_at:.1f} s later.")
    if later_starts:
        console.print(f"The next job started {min(later_starts) - killer.replaced_at:.1f} s after that.")
    console.print(f"Unfinished chains: {lost}. Jobs that ran twice: {twice}.", style="bold")
    return 1 if lost or twice else 0


if __name__ == "__main__":
    sys.exit(main())
