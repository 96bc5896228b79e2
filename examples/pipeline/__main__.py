"""Run the pipeline on celery_affinity and on stock Celery, and compare them.

    python -m examples.pipeline [--docs FOLDER]

The demo starts its own server unless REDIS_URL is set.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console

from examples.comparing import program
from examples.comparing.program import DemoError
from examples.pipeline import OUTPUT, documents, index, plan, report, sides, timeline

DOCUMENTS = Path(__file__).parent.parent / "documents"


def main() -> int:
    options = _options()
    console = Console(highlight=False)
    return program.run(console, lambda: _demo(console, options.docs or DOCUMENTS, options.out, options.seconds))


def _demo(console: Console, folder: Path, out: Path, seconds: float) -> int:
    paths = _find(console, folder)
    _print(console, "Measuring how long the documents take to read ...")
    work = plan.make(paths, seconds)
    _print_plan(console, work)
    with program.server() as url:
        runs = [sides.run(console, side, work, seconds, out, url) for side in sides.SIDES]
    page = timeline.write(out / "timeline.html", runs, work)
    report.show(console, runs, work)
    _try_search(console, runs[0].folder / index.NAME, out)
    console.print(f"\nThe timeline of all slots: [bold]{page.resolve().as_uri()}[/bold]", soft_wrap=True)
    return 1 if any(run.unfinished(len(work.requests)) for run in runs) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.pipeline", description=(__doc__ or "").splitlines()[0])
    kinds = ", ".join(documents.TYPES)
    parser.add_argument("--docs", type=_folder, help=f"a folder of {kinds} files (default: the example's)")
    parser.add_argument("--out", type=Path, default=OUTPUT, help="folder for the results (default: demo-output)")
    parser.add_argument("--seconds", type=float, default=20.0, help="planned duration of a side's work (default: 20)")
    return parser.parse_args()


def _folder(text: str) -> Path | None:
    """Return the folder, or None if *text* is empty: a Makefile can pass an empty option."""
    return Path(text).expanduser() if text else None


def _find(console: Console, folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DemoError(f"{folder}: there is no such folder.")
    paths, others = documents.find(folder)
    if not paths:
        raise DemoError(f"{folder}: no documents here. Put some {', '.join(documents.TYPES)} files into it.")
    kinds = Counter(path.suffix.lower() for path in paths)
    _print(
        console, f"{len(paths)} documents in {folder}: " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    )
    if others:
        suffixes = sorted({path.suffix or path.name for path in others})
        _print(console, f"Ignored: {len(others)} other files ({', '.join(suffixes[:6])})")
    return paths


def _print_plan(console: Console, work: plan.Plan) -> None:
    if work.omitted:
        _print(console, f"The demo reads {work.documents} of them, chosen at random, and omits {work.omitted}.")
    times = "once" if work.rounds == 1 else f"{work.rounds} times"
    _print(
        console,
        f"A batch reads and indexes each document {times}: {work.count('queued')} chains of two tasks. During the "
        f"batch, users request {work.count('on_demand')} documents and wait for them.\nBoth sides get the same work at "
        "the same times, and the same four workers: three specialists, one versatile.\n",
    )


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _try_search(console: Console, path: Path, out: Path) -> None:
    counts = index.size(path)
    _print(console, "\nThe index has {} documents, {} pages and sheets, {} columns of numbers.".format(*counts))
    if word := index.example_word(path):
        _print(console, "Search it, for example:")
        out_option = "" if out == OUTPUT else f" --out {out}"
        console.print(
            f"  {_python()} -m examples.pipeline.search {word}{out_option}", style="bold", markup=False, soft_wrap=True
        )
        best_by_kind = {Path(hit.path).suffix: hit for hit in reversed(index.search(path, word, limit=100))}
        for hit in best_by_kind.values():
            _print(console, f"    {Path(hit.path).name}, {hit.part}: {hit.snippet}")


def _python() -> str:
    """Return the path of this Python, relative if possible: its virtual environment does not have to be active."""
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())
