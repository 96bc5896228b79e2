"""A specialist beside a versatile worker: the same jobs, placed as stock Celery places them and as the rule here does."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from celery_affinity.clock import SECOND_US
from celery_affinity.policy.score import Weights, score
from tests.conformance.reference.placement import FreeWorker, choose_worker

from .drawing import WIDTH, Drawing

WORKERS = {"versatile": frozenset({"pdf", "excel"}), "specialist": frozenset({"pdf"})}  # as they began to wait
LENGTH_S = {"pdf": 6.0, "excel": 2.0}
COLOUR = {"pdf": "blue", "excel": "green"}
LEFT, LAST_S, PANEL = 100, 20, 206


class Job(NamedTuple):
    type: str
    published_s: float


JOBS = (*(Job("pdf", at) for at in (0, 6, 12)), *(Job("excel", at) for at in (1, 7.5, 13)))


@dataclass(frozen=True)
class Run:
    """A job on a worker."""

    job: Job
    worker: str
    start_s: float

    @property
    def end_s(self) -> float:
        return self.start_s + LENGTH_S[self.job.type]

    @property
    def wait_s(self) -> float:
        return self.start_s - self.job.published_s


Choose = Callable[[str, Iterable[FreeWorker]], FreeWorker | None]


def longest_waiting(type_: str, workers: Iterable[FreeWorker]) -> FreeWorker | None:
    """Return whom Redis serves that only has lists: of the workers that wait for the queue, the first that asked."""
    return min((each for each in workers if type_ in each.types), key=lambda each: each.since_us, default=None)


def runs(choose_worker: Choose) -> list[Run]:
    """Return what runs where and when. The job is the one with the best score, which is the oldest here."""
    free = {name: FreeWorker(name, types, number) for number, (name, types) in enumerate(WORKERS.items())}
    done: list[Run] = []
    waiting = sorted(JOBS, key=lambda job: job.published_s)
    now_s = 0.0
    while waiting:
        for run in done:
            if run.worker not in free and run.end_s <= now_s and not any(_is_later(run, each) for each in done):
                free[run.worker] = FreeWorker(run.worker, WORKERS[run.worker], round(run.end_s * SECOND_US))
        for job in sorted((each for each in waiting if each.published_s <= now_s), key=lambda job: -_score(job, now_s)):
            if worker := choose_worker(job.type, free.values()):
                del free[worker.id]
                waiting.remove(job)
                done.append(Run(job, worker.id, now_s))
        later = [*(job.published_s for job in waiting), *(run.end_s for run in done)]
        now_s = min((at for at in later if at > now_s), default=now_s)
    return done


def _is_later(run: Run, other: Run) -> bool:
    return other.worker == run.worker and other.start_s > run.start_s


def _score(job: Job, now_s: float) -> int:
    slots = sum(job.type in types for types in WORKERS.values())
    return score(0, False, round((now_s - job.published_s) * SECOND_US), slots, Weights()).total


def waits(type_: str, choose_worker: Choose) -> list[float]:
    """Return how long each job of *type_* waits, s."""
    return [
        run.wait_s for run in sorted(runs(choose_worker), key=lambda run: run.job.published_s) if run.job.type == type_
    ]


def draw() -> str:
    stock, ours = (sum(waits("excel", each)) for each in (longest_waiting, choose_worker))
    drawing = Drawing(
        2 * PANEL + 36,
        "A specialist and a versatile worker",
        f"Three pdf jobs and three excel jobs, which only the versatile worker can do. On stock Celery the versatile worker "
        f"gets pdf jobs too, and the excel jobs wait {stock:g} s in all. Here the specialist gets the pdf jobs, and the excel "
        f"jobs wait {ours:g} s.",
    )
    _panel(drawing, 0, "Stock Celery: the worker that asked first", runs(longest_waiting))
    _panel(drawing, PANEL, "celery_affinity: the most specialised worker that is free", runs(choose_worker))
    for second in range(0, LAST_S + 1, 5):
        drawing.text(x(second), 2 * PANEL + 18, f"{second} s", "small fill-soft", "middle")
    return drawing.svg()


def x(second: float) -> float:
    return round(LEFT + second / LAST_S * (WIDTH - LEFT - 30), 1)


def _panel(drawing: Drawing, top: float, title: str, found: list[Run]) -> None:
    drawing.text(16, top + 32, title, "bold")
    for second in range(0, LAST_S + 1, 5):
        drawing.line([(x(second), top + 46), (x(second), top + 198)], "line-grid")
    for number, name in enumerate(("specialist", "versatile")):
        drawing.text(16, top + 74 + 44 * number, name, "small")
        drawing.text(16, top + 91 + 44 * number, ", ".join(sorted(WORKERS[name], reverse=True)), "small fill-soft")
    drawing.text(16, top + 172, "waiting", "small")
    for run in found:
        row = top + (56 if run.worker == "specialist" else 100)
        drawing.box(x(run.start_s) + 1, row, x(run.end_s) - x(run.start_s) - 2, 34, f"fill-{COLOUR[run.job.type]}", 5)
        drawing.text((x(run.start_s) + x(run.end_s)) / 2, row + 22, run.job.type, "small fill-on", "middle")
        if run.wait_s:
            drawing.line([(x(run.job.published_s), top + 167), (x(run.start_s), top + 167)], "waits line-orange")
            words = f"excel, {run.wait_s:g} s"
            drawing.text(x(run.job.published_s), top + 192, words, "small fill-orange")
    if not any(run.wait_s for run in found):
        drawing.text(x(0) + 4, top + 172, "no job waits", "small fill-soft")
