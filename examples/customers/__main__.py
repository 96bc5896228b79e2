"""Measure how long three customers wait when one of them floods the fleet, on stock Celery and with tenants.

    python -m examples.customers [--docs FOLDER] [--seconds 15] [--sides stock share]

Two specialists and two versatile workers with one slot each read real documents. The same work runs four times. The
results are a table, and a page with a bar for each wait.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples.comparing import page, program, record
from examples.comparing.figures import percentile, seconds
from examples.comparing.processes import Processes
from examples.comparing.program import BOOT_S, DemoError, delete_keys, watch
from examples.customers.app import CUSTOMERS, FLOOD, SIDES
from examples.pipeline import OUTPUT, documents, plan

DOCUMENTS = Path(__file__).parent.parent / "documents"

WORKERS = {"pdf": "pdf", "excel": "excel", "any1": "pdf,excel", "any2": "pdf,excel"}

#: The example gives up if the work has not ended within this multiple of the planned duration plus BOOT_S.
MAX_DURATION_FACTOR = 3.0

STYLE = ".flood{background:#c0392b}.acme{background:#2471a3}.small{background:#1e8449}"


@dataclass
class Run:
    """The jobs of one side."""

    side: str
    #: (customer, published, started, ended), in seconds since the first publish.
    jobs: list[tuple[str, float, float, float]] = field(default_factory=list)

    def waits(self, customer: str) -> list[float]:
        return sorted(started - published for tenant, published, started, _ in self.jobs if tenant == customer)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.customers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--docs", type=Path, default=DOCUMENTS, help="a folder of documents (default: the example's)")
    parser.add_argument("--out", type=Path, default=OUTPUT / "customers", help="folder for the results")
    parser.add_argument("--seconds", type=float, default=15.0, help="planned duration of a side's work (default: 15)")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="sides to run (default: all)")
    options = parser.parse_args()
    console = Console(highlight=False)
    out = options.out.resolve()
    return program.run(console, lambda: _demo(console, options.docs, out, options.seconds, options.sides))


def _demo(console: Console, docs: Path, out: Path, length_s: float, sides: list[str]) -> int:
    paths, _ = documents.find(docs) if docs.is_dir() else ([], [])
    if not paths:
        raise DemoError(f"{docs}: no documents here.")
    work = plan.make(paths, length_s)
    flood, others = work.count("queued"), work.count("on_demand")
    console.print(f"{FLOOD} requests {flood} documents together. Two others request {others}, one after the other.")
    with program.server() as url:
        runs = [_run(console, side, work, length_s, out / side, url) for side in sides]
    table = _table(runs)
    console.print(table)
    path = page.write(
        out / "customers.html",
        "Three customers",
        "Three customers, one of whom floods the fleet",
        f"{FLOOD} requests {flood} documents together; acme and small request {others}, one after the other. Each bar "
        "is the wait of a job.",
        [_sentence(runs, customer) for customer in CUSTOMERS if customer != FLOOD],
        STYLE,
        page.table(table) + "".join(_chart(run) for run in runs),
    )
    console.print(f"\nThe waits of all jobs: [bold]{path.as_uri()}[/bold]", soft_wrap=True)
    return 0 if all(len(run.jobs) == len(work.requests) for run in runs) else 1


def _run(console: Console, side: str, work: plan.Plan, length_s: float, folder: Path, url: str) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / record.NAME).unlink(missing_ok=True)
    work.save(folder / "plan.json")
    keyprefix = f"celery-affinity-demo:{side}:{time.time_ns()}:"
    env = {"CUSTOMERS_SIDE": side, "CUSTOMERS_FOLDER": str(folder), "CUSTOMERS_KEYPREFIX": keyprefix, "REDIS_URL": url}
    console.print(f"{SIDES[side]} ...")
    try:
        with Processes(folder, env) as processes:
            for name, types in WORKERS.items():
                command = f"celery -A examples.customers.app worker -Q {types} -c 1 -n {name}@demo -l WARNING"
                processes.python(name, *f"{command} --without-mingle --without-gossip".split())
            if not watch(processes, lambda: None, BOOT_S, lambda: _count(folder, "ready") == len(WORKERS)):
                raise DemoError(f"The workers did not start within {BOOT_S:.0f} s; their logs are in {folder}")
            processes.python("client", "examples.customers.publish", str(folder / "plan.json"))
            max_s = MAX_DURATION_FACTOR * length_s + BOOT_S
            watch(processes, lambda: None, max_s, lambda: _count(folder, "ended") >= len(work.requests))
    finally:
        delete_keys(url, keyprefix)
    return _read(side, folder)


def _events(folder: Path) -> list[dict]:
    path = folder / record.NAME
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _count(folder: Path, event: str) -> int:
    return sum(line["event"] == event for line in _events(folder))


def _read(side: str, folder: Path) -> Run:
    events = _events(folder)
    times = {(event["event"], event["id"]): event["at"] for event in events if "id" in event}
    calls = [event for event in events if event["event"] == "published"]
    begin = min((call["at"] for call in calls), default=0.0)
    run = Run(side)
    for call in calls:
        started, ended = times.get(("started", call["id"])), times.get(("ended", call["id"]))
        if started is not None and ended is not None:
            run.jobs.append((call["about"], call["at"] - begin, started - begin, ended - begin))
    return run


def _table(runs: list[Run]) -> Table:
    table = Table(title="Waits, s: median / 95th percentile / longest", title_justify="left")
    table.add_column("side", no_wrap=True)
    for customer in CUSTOMERS:
        table.add_column(customer, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(SIDES[run.side], *(_percentiles(run.waits(customer)) for customer in CUSTOMERS))
    return table


def _percentiles(waits: list[float]) -> str:
    return " / ".join(seconds(percentile(waits, percent)) for percent in (50, 95, 100)) if waits else "-"


def _sentence(runs: list[Run], customer: str) -> str:
    medians = {run.side: percentile(run.waits(customer), 50) for run in runs if run.waits(customer)}
    sides = ", ".join(f"{seconds(wait)} s with {SIDES[side]}" for side, wait in medians.items())
    return f"The median wait of {customer}'s jobs: {sides}."


def _chart(run: Run) -> str:
    length_s = max((ended for *_, ended in run.jobs), default=1.0)
    rows = []
    for customer in CUSTOMERS:
        spans = sorted((published, started) for tenant, published, started, _ in run.jobs if tenant == customer)
        rows_of_spans, number = page.pack_rows(spans)
        marks = "".join(
            page.mark(begin, end, length_s, customer, "", f"waited {end - begin:.2f} s", f"top:{row * 3}px;height:2px;")
            for (begin, end), row in zip(spans, rows_of_spans, strict=True)
        )
        rows.append(page.row(customer, f"{len(spans)} jobs", marks, height_px=max(12, 3 * number)))
    return page.chart(run.side, SIDES[run.side], "the wait of each job", [*rows, page.axis(round(length_s))])


if __name__ == "__main__":
    sys.exit(main())
