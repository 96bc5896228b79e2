"""Record a fleet, compute what a change would do, make the change, and measure.

    python -m examples.lab [--docs FOLDER] [--seconds 60] [--out FOLDER]

REDIS_URL names the server; without it, one is started for the example.
"""

import argparse
import base64
import sys
from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from celery_affinity.cli.lab_text import advise_text as text_of_advice
from celery_affinity.lab import plot, waits
from celery_affinity.lab.advise import Advised
from celery_affinity.lab.scenario import Schedule
from celery_affinity.lab.trace import Trace
from examples.comparing import page, program
from examples.comparing.program import DemoError
from examples.lab import asking, fleet, plan, tables
from examples.lab.asking import Change
from examples.pipeline import OUTPUT, documents

DOCUMENTS = Path(__file__).parent.parent / "documents"

#: The target of the advice, as a part of the recorded wait.
TARGET = 1 / 2

#: A prediction is good within these parts of what is measured.
GOOD_P50, GOOD_P95 = 0.10, 0.20

STYLE = "section table{margin:0 0 12px} pre{font-size:13px;overflow:auto} img{max-width:720px;width:100%}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.lab", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--docs", type=_folder, help="a folder of documents (default: the example's)")
    parser.add_argument("--out", type=Path, default=OUTPUT / "lab", help="where results go (default: demo-output/lab)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long documents come, each time (default: 60)")
    options = parser.parse_args()
    console = Console(highlight=False)
    story = Story(console, options.out.resolve(), options.seconds)
    return program.run(console, lambda: story.run(options.docs or DOCUMENTS))


def _folder(text: str) -> Path | None:
    """Return the folder; none for an empty text, as a Makefile may pass it."""
    return Path(text).expanduser() if text else None


class Story:
    """What happens, in its order; each part is printed, and goes on the page."""

    def __init__(self, console: Console, out: Path, length_s: float) -> None:
        self.console, self.out, self.length_s = console, out, length_s
        self.said: list[str] = []
        self.parts: list[str] = []

    def run(self, folder: Path) -> int:
        found, _ = documents.find(folder) if folder.is_dir() else ([], [])
        calls = plan.make(found, self.length_s)
        if not calls:
            raise DemoError(f"{folder}: no documents here.")
        with program.server() as url:
            self.console.print(f"{len(calls)} documents come within {self.length_s:g} s, and are read ...")
            trace = fleet.recorded(self.out / "before", url, calls, self.length_s, plan.WORKERS)
            self.replay(trace)
            self.ask(trace)
            change = self.advise(trace)
            self.optimum(trace)
            predicted = self.what_if("advised", trace, change)
            self.console.print("The fleet is changed so, and the same documents come once more ...")
            workers, settings = changed(change)
            again = fleet.recorded(self.out / "after", url, calls, self.length_s, workers, settings)
        self.compare(predicted, trace, again)
        self.write()
        return 0

    def replay(self, trace: Trace) -> None:
        found = asking.replay(trace)
        self.tell(f"Replayed: {found.fidelity:.1%} of {found.claims} claims as recorded.")
        table = tables.of_waits(found.recorded, found.replayed, ("record", "replay"), "lab replay: waits, s")
        self.show("replay", "The record, scheduled again", table)

    def ask(self, trace: Trace) -> None:
        """Ask for one more slot where jobs wait longest, and for a limit of the type that floods."""
        longest = asking.waits_longest(asking.replay(trace).recorded)
        self.what_if("slot", trace, Change(add=(f"[{longest}]:1",)))
        self.what_if("limit", trace, Change(settings=(f"limits.type:{plan.FLOOD}=1",)))

    def what_if(self, id: str, trace: Trace, change: Change) -> Schedule:
        """Tell what *change* would do, and return the schedule with it. *id*: of the part of the page."""
        before, after = asking.what_if(trace, change)
        title = f"lab whatif {change.words}"
        table = tables.of_waits(
            waits.report_waits(before), waits.report_waits(after), ("before", "after"), f"{title}: waits, s"
        )
        drawing = plot.waits_svg(
            waits.waits_by_job(before).values(), waits.waits_by_job(after).values(), f"waits with {change.words}"
        )
        (self.out / f"{id}.svg").write_text(drawing, encoding="utf-8")
        self.show(id, title, table, _image(drawing))
        return after

    def advise(self, trace: Trace) -> Change:
        """Ask for the fewest slots and settings for half of the recorded wait, and return what is to be done."""
        p95_s = waits.report_waits(asking.measured(trace)).all.p95_s or 0.0
        target = f"all:p95<{max(0.1, round(TARGET * p95_s, 1)):g}s"
        found = asking.advice(trace, target)
        text = f"lab advise --target '{target}'\n{text_of_advice(found)}"
        self.console.print(text, markup=False, soft_wrap=True)
        self.parts.append(page.chart("advice", "The advice", "", [f"<pre>{escape(text)}</pre>"]))
        return _first(found)

    def optimum(self, trace: Trace) -> None:
        found = asking.distance(trace)
        if found.replayed_at_least and found.replayed_at_most:
            low, high = found.replayed_at_least, found.replayed_at_most
            self.tell(f"The fleet's schedule waits {low:.2f} to {high:.2f} times as long as the best possible one.")
        self.show("optimum", "The best possible schedule", tables.of_optimum(found))

    def compare(self, predicted: Schedule, trace: Trace, again: Trace) -> None:
        ours, theirs = waits.report_waits(predicted), waits.report_waits(asking.measured(again))
        self.show("measured", "Predicted and measured", tables.of_prediction(ours, theirs))
        self.tell(_reached("median", tables.off_by(ours.all.p50_s, theirs.all.p50_s), GOOD_P50))
        self.tell(_reached("95th percentile", tables.off_by(ours.all.p95_s, theirs.all.p95_s), GOOD_P95))
        took_s, again_s = (asking.work_s(each) for each in (trace, again))
        kept = asking.replay(again).fidelity
        self.tell(
            f"The same documents took {again_s:.1f} s of slots instead of {took_s:.1f} s, which no prediction knew; "
            f"of the second record {kept:.1%} of the claims are replayed as recorded."
        )

    def tell(self, sentence: str) -> None:
        self.console.print(f"* {sentence}", markup=False, soft_wrap=True)
        self.said.append(sentence)

    def show(self, id: str, title: str, table: Table, more: str = "") -> None:
        self.console.print(table)
        self.parts.append(page.chart(id, title, "waits, s", [page.table(table), more]))

    def write(self) -> None:
        intro = "Documents were read under a load that is a bit too much. The same documents came again after a change."
        body = "".join(self.parts)
        path = page.write(
            self.out / "lab.html", "The lab", "A fleet, its record, and a change", intro, self.said, STYLE, body
        )
        self.console.print(f"\nAll of this on a page: [bold]{path.as_uri()}[/bold]", soft_wrap=True)


def changed(change: Change) -> tuple[fleet.Workers, list[str]]:
    """Return the fleet with *change*, and the words for `affinity settings set`."""
    workers = dict(plan.WORKERS)
    for number, word in enumerate(change.add, 1):
        types, _, slots = word.partition("]:")
        workers[f"added{number}"] = (types.removeprefix("["), int(slots))
    return workers, [word for each in change.settings for word in each.split("=", 1)]


def _first(found: Advised) -> Change:
    """Return the first advice; if there is none, or it takes slots away, a slot more for the type that floods."""
    return (
        asking.change_of(found.advice[0]) if found.advice and not found.already else Change(add=(f"[{plan.FLOOD}]:1",))
    )


def _reached(what: str, part: float | None, good: float) -> str:
    if part is None:
        return f"The {what} cannot be compared: jobs hardly wait."
    verdict = "within" if abs(part) <= good else "not within"
    where = "above" if part > 0 else "below"
    return f"The predicted {what} of all waits is {abs(part):.1%} {where} the measured one: {verdict} {good:.0%}."


def _image(drawing: str) -> str:
    """Return an SVG as an image of the page: its styles stay its own."""
    data = base64.b64encode(drawing.encode()).decode()
    return f'<img alt="waits before and after" src="data:image/svg+xml;base64,{data}">'


if __name__ == "__main__":
    sys.exit(main())
