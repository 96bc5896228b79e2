"""How a death is noticed: of a worker that is killed, and of a machine that vanishes."""

from collections.abc import Callable

from celery_affinity.clock import SECOND_US
from celery_affinity.liveness.guard_process import _KILL_S
from celery_affinity.schema.constants import TICK_US
from celery_affinity.settings.table import Settings

from .drawing import WIDTH, Drawing

LEFT, PANEL = 92, 262
TIMEOUT_S = Settings().worker_timeout
TICK_S = TICK_US / SECOND_US
LAST_BEAT_S = -3  # before the machine dies: an example

At = Callable[[float], float]


def draw() -> str:
    drawing = Drawing(
        2 * PANEL + 10,
        "How a death is noticed",
        f"A worker is killed: its guard notices at once, ends what is left of its pool within {_KILL_S:g} s, and its jobs are pending "
        f"again; the next worker runs them. A machine dies, and the guard with it: {TIMEOUT_S:g} s after the last heartbeat the next "
        f"tick, {TICK_S:g} s later at most, makes the jobs pending again.",
    )
    _killed(drawing)
    _vanished(drawing)
    return drawing.svg()


def _killed(drawing: Drawing) -> None:
    at = _axis(
        drawing,
        0,
        "kill -9 of a worker: its guard notices at once",
        (-0.4, 1.4),
        (0, 0.5, 1),
        ("worker A", "guard", "worker B"),
    )
    _bar(drawing, 0, 0, at(-0.4), at(0), "green", "the job runs")
    _bar(drawing, 0, 1, at(0), at(_KILL_S), "orange", "ends the pool")
    drawing.text(at(_KILL_S) + 8, 140, f"{_KILL_S:g} s at most", "small fill-soft")
    _bar(drawing, 0, 2, at(_KILL_S), at(1.4), "green", "the job runs again")
    _moment(drawing, 0, at(0), 0, 1, "killed")
    _moment(drawing, 0, at(_KILL_S), 1, 2, "recover, claim")


def _vanished(drawing: Drawing) -> None:
    first = LAST_BEAT_S - 3
    dead_s = LAST_BEAT_S + TIMEOUT_S
    at = _axis(
        drawing,
        PANEL,
        "The whole machine dies, and the guard with it: silence counts",
        (first, 36),
        (0, 10, 20, 30),
        ("worker A", "server", "worker B"),
    )
    _bar(drawing, PANEL, 0, at(first), at(0), "green", "runs")
    _bar(drawing, PANEL, 1, at(LAST_BEAT_S), at(dead_s), "orange", f"{TIMEOUT_S:g} s since the last heartbeat")
    _bar(drawing, PANEL, 2, at(dead_s + TICK_S), at(36), "green", "again")
    _moment(drawing, PANEL, at(0), 0, 0, "the machine dies")
    _moment(drawing, PANEL, at(dead_s + TICK_S), 1, 2, f"next tick: {TICK_S:g} s at most", is_left=True)


def _axis(
    drawing: Drawing, top: float, title: str, span: tuple[float, float], marks: tuple[float, ...], rows: tuple[str, ...]
) -> At:
    def at(second: float) -> float:
        return round(LEFT + (second - span[0]) / (span[1] - span[0]) * (WIDTH - LEFT - 20), 1)

    drawing.text(16, top + 34, title, "bold")
    for mark in marks:
        drawing.line([(at(mark), top + 50), (at(mark), top + 228)], "line-grid")
        drawing.text(at(mark), top + 248, f"{mark:g} s", "small fill-soft", "middle")
    for number, row in enumerate(rows):
        drawing.text(16, top + 80 + 60 * number, row, "small")
    return at


def _bar(drawing: Drawing, top: float, row: int, start: float, end: float, colour: str, words: str) -> None:
    drawing.box(start, top + 58 + 60 * row, end - start, 34, f"fill-{colour}", 4)
    drawing.text((start + end) / 2, top + 80 + 60 * row, words, "small fill-on", "middle")


def _moment(drawing: Drawing, top: float, x: float, row: int, to: int, words: str, *, is_left: bool = False) -> None:
    """Mark a moment at the end of *row*, with an arrow to the row *to* if that is another one."""
    y = top + 92 + 60 * row
    if to > row:
        drawing.arrow([(x, y), (x, y + 26)], "red")
        drawing.text(x - 8 if is_left else x + 8, y + 18, words, "small fill-red", "end" if is_left else "start")
    else:
        drawing.text(x + 8, y - 12, words, "small fill-red")
