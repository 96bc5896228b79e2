"""Run the pipeline on celery_affinity and on stock Celery, and compare.

    python -m examples.pipeline [--docs FOLDER]

REDIS_URL names the server; without it, one is started for the demo.
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
    found = _find(console, folder)
    _say(console, "Trying how long the documents take to read ...")
    work = plan.make(found, seconds)
    _say_plan(console, work)
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
    parser.add_argument("--docs", type=_folder, help=f"a folder of {kinds} files (default: the example's own)")
    parser.add_argument("--out", type=Path, default=OUTPUT, help="where results go (default: demo-output)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="how long the work of one side should take, about (default: 20)"
    )
    return parser.parse_args()


def _folder(text: str) -> Path | None:
    """Return the folder; none for an empty text, as a Makefile may pass it."""
    return Path(text).expanduser() if text else None


def _find(console: Console, folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DemoError(f"{folder}: there is no such folder.")
    found, others = documents.find(folder)
    if not found:
        raise DemoError(f"{folder}: no documents here. Put some {', '.join(documents.TYPES)} files into it.")
    kinds = Counter(path.suffix.lower() for path in found)
    _say(console, f"{len(found)} documents in {folder}: " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()))
    if others:
        suffixes = sorted({path.suffix or path.name for path in others})
        _say(console, f"Left alone: {len(others)} other files ({', '.join(suffixes[:6])})")
    return found


def _say_plan(console: Console, work: plan.Plan) -> None:
    if work.left_out:
        _say(console, f"To keep it short, {work.documents} of them, chosen at random; {work.left_out} are left out.")
    times = "once" if work.rounds == 1 else f"{work.rounds} times"
    _say(
        console,
        f"A batch reads and indexes each document {times}: {work.count('queued')} chains of two tasks. Meanwhile users "
        f"ask for {work.count('on_demand')} documents, and wait.\nBoth sides get the same work at the same times, and "
        "the same four workers: three specialists, one versatile.\n",
    )


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _try_search(console: Console, path: Path, out: Path) -> None:
    counts = index.size(path)
    _say(console, "\n{} documents, {} pages and sheets, {} columns of figures are in the index.".format(*counts))
    if word := index.telling_word(path):
        _say(console, "Search it, for example:")
        where = "" if out == OUTPUT else f" --out {out}"
        console.print(
            f"  {_python()} -m examples.pipeline.search {word}{where}", style="bold", markup=False, soft_wrap=True
        )
        best_by_kind = {Path(hit.path).suffix: hit for hit in reversed(index.search(path, word, limit=100))}
        for hit in best_by_kind.values():
            _say(console, f"    {Path(hit.path).name}, {hit.part}: {hit.snippet}")


def _python() -> str:
    """Return how to call this Python from here: it may be that of a virtual environment which is not active."""
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())
