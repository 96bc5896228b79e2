"""Record a fleet, predict the effect of a change, make the change, and measure it.

    python -m examples.lab [--docs FOLDER] [--seconds 60] [--out FOLDER]

The example starts its own server unless REDIS_URL is set.
"""

import argparse
import base64
import sys
from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from celery_affinity.cli.lab_text import advise_text
from celery_affinity.lab import plot, waits
from celery_affinity.lab.advise import Advised
from celery_affinity.lab.scenario import Schedule
from celery_affinity.lab.trace import Trace
from examples.comparing import page, program
from examples.comparing.program import DemoError
from examples.lab import fleet, plan, queries, tables
from examples.lab.queries import Change
from examples.pipeline import OUTPUT, documents

DOCUMENTS = Path(__file__).parent.parent / "documents"

#: The target wait of the advice, as a fraction of the recorded 95th percentile.
TARGET = 1 / 2

#: A prediction is good if its relative error is at most this, for the median and the 95th percentile.
GOOD_P50, GOOD_P95 = 0.10, 0.20

STYLE = "section table{margin:0 0 12px} pre{font-size:13px;overflow:auto} img{max-width:720px;width:100%}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.lab", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--docs", type=_folder, help="a folder of documents (default: the example's)")
    parser.add_argument(
        "--out", type=Path, default=OUTPUT / "lab", help="folder for the results (default: demo-output/lab)"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="seconds during which documents arrive (default: 60)"
    )
    options = parser.parse_args()
    console = Console(highlight=False)
    demo = LabDemo(console, options.out.resolve(), options.seconds)
    return program.run(console, lambda: demo.run(options.docs or DOCUMENTS))


def _folder(text: str) -> Path | None:
    """Return the folder, or None if *text* is empty: a Makefile can pass an empty option."""
    return Path(text).expanduser() if text else None


class LabDemo:
    """Runs the steps of the example in order. Each step prints its result and adds it to the page."""

    def __init__(self, console: Console, out: Path, length_s: float) -> None:
        self.console, self.out, self.length_s = console, out, length_s
        self.sentences: list[str] = []
        self.sections: list[str] = []

    def run(self, folder: Path) -> int:
        paths, _ = documents.find(folder) if folder.is_dir() else ([], [])
        calls = plan.make(paths, self.length_s)
        if not calls:
            raise DemoError(f"{folder}: no documents here.")
        with program.server() as url:
            self.console.print(f"The fleet reads {len(calls)} documents, which arrive within {self.length_s:g} s ...")
            trace = fleet.record_run(self.out / "before", url, calls, self.length_s, plan.WORKERS)
            self.replay(trace)
            self.predict_changes(trace)
            change = self.advise(trace)
            self.optimum(trace)
            predicted = self.what_if("advised", trace, change)
            self.console.print("The changed fleet reads the same documents again ...")
            workers, settings = apply_change(change)
            second = fleet.record_run(self.out / "after", url, calls, self.length_s, workers, settings)
        self.compare(predicted, trace, second)
        self.write()
        return 0

    def replay(self, trace: Trace) -> None:
        result = queries.replay(trace)
        self.add_sentence(f"The replay reproduces {result.fidelity:.1%} of the {result.claims} recorded claims.")
        table = tables.waits_table(result.recorded, result.replayed, ("record", "replay"), "lab replay: waits, s")
        self.add_table("replay", "The record, scheduled again", table)

    def predict_changes(self, trace: Trace) -> None:
        """Predict the effect of one more slot for the type that waits longest, and of a limit for the flooding type."""
        longest = queries.slowest_type(queries.replay(trace).recorded)
        self.what_if("slot", trace, Change(add=(f"[{longest}]:1",)))
        self.what_if("limit", trace, Change(settings=(f"limits.type:{plan.FLOOD}=1",)))

    def what_if(self, id: str, trace: Trace, change: Change) -> Schedule:
        """Print the predicted waits with *change*, and return the schedule. *id*: HTML id of the section."""
        before, after = queries.what_if(trace, change)
        title = f"lab whatif {change.options}"
        table = tables.waits_table(
            waits.report_waits(before), waits.report_waits(after), ("before", "after"), f"{title}: waits, s"
        )
        drawing = plot.waits_svg(
            waits.waits_by_job(before).values(), waits.waits_by_job(after).values(), f"waits with {change.options}"
        )
        (self.out / f"{id}.svg").write_text(drawing, encoding="utf-8")
        self.add_table(id, title, table, _image(drawing))
        return after

    def advise(self, trace: Trace) -> Change:
        """Print the cheapest changes that halve the recorded waits, and return the first one."""
        p95_s = waits.report_waits(queries.recorded_schedule(trace)).all.p95_s or 0.0
        target = f"all:p95<{max(0.1, round(TARGET * p95_s, 1)):g}s"
        result = queries.advice(trace, target)
        text = f"lab advise --target '{target}'\n{advise_text(result)}"
        self.console.print(text, markup=False, soft_wrap=True)
        self.sections.append(page.chart("advice", "The advice", "", [f"<pre>{escape(text)}</pre>"]))
        return _first_change(result)

    def optimum(self, trace: Trace) -> None:
        result = queries.distance(trace)
        if result.replayed_at_least and result.replayed_at_most:
            low, high = result.replayed_at_least, result.replayed_at_most
            self.add_sentence(
                f"In the fleet's schedule, jobs wait {low:.2f} to {high:.2f} times as long as in the best possible one."
            )
        self.add_table("optimum", "The best possible schedule", tables.optimum_table(result))

    def compare(self, schedule: Schedule, first: Trace, second: Trace) -> None:
        predicted = waits.report_waits(schedule)
        measured = waits.report_waits(queries.recorded_schedule(second))
        self.add_table("measured", "Predicted and measured", tables.prediction_table(predicted, measured))
        for name, one, other, good in (
            ("median", predicted.all.p50_s, measured.all.p50_s, GOOD_P50),
            ("95th percentile", predicted.all.p95_s, measured.all.p95_s, GOOD_P95),
        ):
            self.add_sentence(_error_sentence(name, tables.relative_error(one, other), good))
        first_s, second_s = (queries.work_s(trace) for trace in (first, second))
        self.add_sentence(
            f"The same documents took {second_s:.1f} s of slot time instead of {first_s:.1f} s, which the prediction "
            f"could not include. A replay reproduces {queries.replay(second).fidelity:.1%} of the second record."
        )

    def add_sentence(self, sentence: str) -> None:
        self.console.print(f"* {sentence}", markup=False, soft_wrap=True)
        self.sentences.append(sentence)

    def add_table(self, id: str, title: str, table: Table, more_html: str = "") -> None:
        self.console.print(table)
        self.sections.append(page.chart(id, title, "waits, s", [page.table(table), more_html]))

    def write(self) -> None:
        intro = "A fleet read documents under a load that was slightly too high, and read them again after a change."
        body = "".join(self.sections)
        path = page.write(
            self.out / "lab.html", "The lab", "A fleet, its record, and a change", intro, self.sentences, STYLE, body
        )
        self.console.print(f"\nThese results as a page: [bold]{path.as_uri()}[/bold]", soft_wrap=True)


def apply_change(change: Change) -> tuple[fleet.Workers, list[str]]:
    """Return the workers with *change*, and the arguments of `affinity settings set`."""
    workers = dict(plan.WORKERS)
    for number, spec in enumerate(change.add, 1):
        types, _, slots = spec.partition("]:")
        workers[f"added{number}"] = (types.removeprefix("["), int(slots))
    return workers, [argument for setting in change.settings for argument in setting.split("=", 1)]


def _first_change(result: Advised) -> Change:
    """Return the first advice. If the target is already reached or there is no advice, add a slot for FLOOD."""
    return (
        queries.change_of(result.advice[0])
        if result.advice and not result.already
        else Change(add=(f"[{plan.FLOOD}]:1",))
    )


def _error_sentence(name: str, error: float | None, good: float) -> str:
    if error is None:
        return f"The {name} cannot be compared: jobs hardly wait."
    verdict = "within" if abs(error) <= good else "not within"
    direction = "above" if error > 0 else "below"
    return f"The predicted {name} of all waits is {abs(error):.1%} {direction} the measured one: {verdict} {good:.0%}."


def _image(drawing: str) -> str:
    """Return an SVG as an <img> element, so that its styles do not apply to the rest of the page."""
    data = base64.b64encode(drawing.encode()).decode()
    return f'<img alt="waits before and after" src="data:image/svg+xml;base64,{data}">'


if __name__ == "__main__":
    sys.exit(main())
