"""Shows the progress of a run: a live table in a terminal, otherwise a line of text every few seconds."""

import time

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.pipeline.measure import TYPES, WORKERS, Run

COLOURS = {"pdf": "blue", "excel": "green", "index": "yellow"}
PLAIN_EVERY_S = 5.0


class Progress:
    """A context manager that shows the progress of *run*. Call `show` frequently."""

    def __init__(self, console: Console, run: Run, title: str, expected: dict[str, int]) -> None:
        self._console = console
        self._run = run
        self._title = title
        self._expected = expected
        self._live = (
            Live(console=console, refresh_per_second=8, transient=True, auto_refresh=False)
            if console.is_terminal
            else None
        )
        self._last_line_at = time.monotonic()

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        else:
            self._console.print(self._title)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self) -> None:
        if self._live:
            self._live.update(self._panel(), refresh=True)
        elif time.monotonic() - self._last_line_at >= PLAIN_EVERY_S:
            self._last_line_at = time.monotonic()
            parts = [f"{t}: {w} waiting, {r} running, {d} done" for t in TYPES for w, r, d in [self._counts(t)]]
            self._console.print("  " + " | ".join(parts), highlight=False, soft_wrap=True)

    def _counts(self, type_: str) -> tuple[int, int, int]:
        jobs = self._run.select(type_)
        done = sum(job.ended is not None for job in jobs)
        started = sum(job.started is not None for job in jobs)
        return len(jobs) - started, started - done, done

    def _panel(self) -> Panel:
        types = Table(box=None, padding=(0, 2), expand=True)
        types.add_column("type", width=9)
        for heading in ("waiting", "running", "done"):
            types.add_column(heading, justify="right", width=7)
        types.add_column("", ratio=1)
        for type_ in TYPES:
            counts, colour = self._counts(type_), COLOURS[type_]
            bar = ProgressBar(self._expected[type_], counts[2], complete_style=colour, finished_style=colour)
            types.add_row(Text(type_, colour), *map(str, counts), bar)
        workers = Table(box=None, padding=(0, 2), expand=True)
        workers.add_column("worker", width=9)
        workers.add_column("runs", ratio=1, no_wrap=True)
        for worker in WORKERS:
            workers.add_row(worker, self._current_job(worker))
        elapsed = time.time() - self._run.began if self._run.jobs else 0
        users = sum(job.started is None for job in self._run.select(mode="on_demand"))
        subtitle = f"{elapsed:.0f} s, users waiting for a start: {users}"
        return Panel(Group(types, "", workers), title=self._title, subtitle=subtitle, padding=(1, 1))

    def _current_job(self, worker: str) -> Text:
        if worker not in self._run.ready:
            return Text("starting", "dim")
        for job in self._run.select(worker=worker):
            if job.ended is None:
                mark = " for a user" if job.mode == "on_demand" else ""
                return Text.assemble((f"{job.type} ", COLOURS[job.type]), job.about, (mark, "bold"))
        return Text("free", "dim")
