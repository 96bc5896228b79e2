"""Run the pipeline on six nodes, and kill the primary that has the jobs in the middle.

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

#: A key of the fleet: its hash tag says which node has all of them.
KEY = Keys().base


def main() -> int:
    options = _options()
    console = Console(highlight=False)
    return program.run(console, lambda: _demo(console, options.docs, options.out, options.seconds))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.cluster", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--docs", type=Path, default=DOCUMENTS, help="a folder (default: the example's own)")
    parser.add_argument("--out", type=Path, default=OUTPUT, help="where results go (default: demo-output)")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the work should take (default: 20)")
    return parser.parse_args()


class Accident:
    """Ends the primary that has the jobs, with SIGKILL, once half of the chains are done."""

    def __init__(self, cluster: EmbeddedCluster, chains: int) -> None:
        self._cluster = cluster
        self._chains = chains
        self.killed: float | None = None
        self.over: float | None = None

    def look(self, run: Run) -> None:
        ended = sum(job.type == "index" and job.ended is not None for job in run.jobs.values())
        if self.killed is None and ended >= self._chains / 2:
            self._owner = self._cluster.owner_of(KEY)
            if self._owner is not None:
                self._owner.kill()
                self.killed = time.time()
        elif self.killed is not None and self.over is None and self._cluster.owner_of(KEY) is not None:
            self.over = time.time()


def _demo(console: Console, folder: Path, out: Path, seconds: float) -> int:
    found, _ = documents.find(folder) if folder.is_dir() else ([], [])
    if not found:
        raise DemoError(f"{folder}: no documents here.")
    work = plan.make(found, seconds)
    console.print(f"{len(work.requests)} chains of two tasks, on four workers and six nodes.")
    with EmbeddedCluster() as cluster:
        _show_nodes(console, cluster)
        accident = Accident(cluster, len(work.requests))
        run = sides.run(console, "affinity", work, seconds, out, cluster.url, meanwhile=accident.look)
        _show_nodes(console, cluster)
    return _report(console, run, accident, len(work.requests))


def _show_nodes(console: Console, cluster: EmbeddedCluster) -> None:
    owner = cluster.owner_of(KEY)
    for node in cluster.nodes:
        state = "primary" if node.is_running and node.is_primary else "replica" if node.is_running else "dead"
        console.print(f"  {node.port}  {state}{', has all jobs' if node is owner else ''}")


def _report(console: Console, run: Run, accident: Accident, chains: int) -> int:
    if accident.killed is None or accident.over is None:
        console.print("The work was over before the primary could be killed: choose more --seconds.", style="red")
        return 1
    starts = Counter(
        event["id"]
        for event in map(json.loads, (run.folder / record.NAME).read_text(encoding="utf-8").splitlines())
        if event["event"] == "started"
    )
    after = [job.started for job in run.jobs.values() if job.started is not None and job.started > accident.over]
    lost, twice = run.unfinished(chains), sum(count > 1 for count in starts.values())
    console.print(f"\nThe primary was killed {accident.killed - run.began:.1f} s after the first call.")
    console.print(f"A replica took over {accident.over - accident.killed:.1f} s later.")
    if after:
        console.print(f"The next job began {min(after) - accident.over:.1f} s after that.")
    console.print(f"Chains that did not come to their end: {lost}. Jobs that ran twice: {twice}.", style="bold")
    return 1 if lost or twice else 0


if __name__ == "__main__":
    sys.exit(main())
