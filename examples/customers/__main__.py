"""The waits of three customers, one of whom floods the fleet: on stock Celery, and with tenants.

    python -m examples.customers [--docs FOLDER] [--seconds 15] [--sides stock share]

Real documents are read, by two specialists and two versatile workers with a slot each. The same work is done four
times; the result is a table, and a page with a bar for each wait.
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
from examples.comparing.program import BOOT_S, DemoError, forget, watch
from examples.customers.app import CUSTOMERS, FLOOD, SIDES
from examples.pipeline import OUTPUT, documents, plan

DOCUMENTS = Path(__file__).parent.parent / "documents"

WORKERS = {"pdf": "pdf", "excel": "excel", "any1": "pdf,excel", "any2": "pdf,excel"}

#: Work that has not ended after so many times the planned duration, and half a minute, is given up.
PATIENCE = 3.0

STYLE = ".flood{background:#c0392b}.acme{background:#2471a3}.small{background:#1e8449}"


@dataclass
class Run:
    """What happened on one *side*: (customer, published, started, ended) of each job, s since the first publish."""

    side: str
    jobs: list[tuple[str, float, float, float]] = field(default_factory=list)

    def waits(self, customer: str) -> list[float]:
        return sorted(started - published for who, published, started, _ in self.jobs if who == customer)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.customers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--docs", type=Path, default=DOCUMENTS, help="a folder of documents (default: the example's)")
    parser.add_argument("--out", type=Path, default=OUTPUT / "customers", help="where results go")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long the work of a side takes, about")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="which sides (default: all)")
    options = parser.parse_args()
    console = Console(highlight=False)
    out = options.out.resolve()
    return program.run(console, lambda: _demo(console, options.docs, out, options.seconds, options.sides))


def _demo(console: Console, docs: Path, out: Path, length_s: float, sides: list[str]) -> int:
    found, _ = documents.find(docs) if docs.is_dir() else ([], [])
    if not found:
        raise DemoError(f"{docs}: no documents here.")
    work = plan.make(found, length_s)
    flood, others = work.count("queued"), work.count("on_demand")
    console.print(f"{FLOOD} asks for {flood} documents at once; two others for {others}, one after the other.")
    with program.server() as url:
        runs = [_run(console, side, work, length_s, out / side, url) for side in sides]
    table = _table(runs)
    console.print(table)
    path = page.write(
        out / "customers.html",
        "Three customers",
        "Three customers, one of whom floods the fleet",
        f"{FLOOD} asks for {flood} documents at once; acme and small ask for {others}, one after the other. Each bar "
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
            most_s = PATIENCE * length_s + BOOT_S
            watch(processes, lambda: None, most_s, lambda: _count(folder, "ended") >= len(work.requests))
    finally:
        forget(url, keyprefix)
    return _read(side, folder)


def _events(folder: Path) -> list[dict]:
    path = folder / record.NAME
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _count(folder: Path, event: str) -> int:
    return sum(each["event"] == event for each in _events(folder))


def _read(side: str, folder: Path) -> Run:
    events = _events(folder)
    at = {(each["event"], each["id"]): each["at"] for each in events if "id" in each}
    published = [each for each in events if each["event"] == "published"]
    begin = min((each["at"] for each in published), default=0.0)
    run = Run(side)
    for each in published:
        started, ended = at.get(("started", each["id"])), at.get(("ended", each["id"]))
        if started is not None and ended is not None:
            run.jobs.append((each["about"], each["at"] - begin, started - begin, ended - begin))
    return run


def _table(runs: list[Run]) -> Table:
    table = Table(title="Waits, s: half of them up to / 95 % up to / the longest", title_justify="left")
    table.add_column("side", no_wrap=True)
    for customer in CUSTOMERS:
        table.add_column(customer, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(SIDES[run.side], *(_said(run.waits(customer)) for customer in CUSTOMERS))
    return table


def _said(waits: list[float]) -> str:
    return " / ".join(seconds(percentile(waits, each)) for each in (50, 95, 100)) if waits else "-"


def _sentence(runs: list[Run], customer: str) -> str:
    half = {run.side: percentile(run.waits(customer), 50) for run in runs if run.waits(customer)}
    said = ", ".join(f"{seconds(wait)} s with {SIDES[side]}" for side, wait in half.items())
    return f"Half of {customer}'s jobs wait up to {said}."


def _chart(run: Run) -> str:
    length_s = max((ended for *_, ended in run.jobs), default=1.0)
    rows = []
    for customer in CUSTOMERS:
        spans = sorted((published, started) for who, published, started, _ in run.jobs if who == customer)
        places, number = page.packed(spans)
        marks = "".join(
            page.mark(
                begin, end, length_s, customer, "", f"waited {end - begin:.2f} s", f"top:{place * 3}px;height:2px;"
            )
            for (begin, end), place in zip(spans, places, strict=True)
        )
        rows.append(page.row(customer, f"{len(spans)} jobs", marks, height_px=max(12, 3 * number)))
    return page.chart(run.side, SIDES[run.side], "the wait of each job", [*rows, page.axis(round(length_s))])


if __name__ == "__main__":
    sys.exit(main())
