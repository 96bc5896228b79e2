"""The score lines of the scheduling page, from the code that computes scores."""

from celery_affinity.clock import SECOND_US
from celery_affinity.policy.score import Weights, score

from .drawing import WIDTH, Drawing

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 512, 64, 20, 20, 170
LAST_S, HIGHEST = 600, 24_000
JOBS = [  # label, priority, on demand, enqueued at s, colour, look; the last lies on the line before, so it is dashed
    ("on demand, priority 0, published at 0 s", 0, True, 0, "orange", ""),
    ("on demand, priority 0, published at 256 s", 0, True, 256, "red", ""),
    ("queued, priority 5, published at 0 s", 5, False, 0, "blue", ""),
    ("queued, priority 0, published at 0 s", 0, False, 0, "green", ""),
    ("queued, priority 5, published at 320 s (on the green line)", 5, False, 320, "blue", " dashed"),
]


def points(priority: int, on_demand: bool, since_s: int) -> list[tuple[int, float]]:
    """Return (time in s, score in points) while the job waits, without the rarity term, which all have alike."""
    weights = Weights(rarity=0)
    return [
        (second, score(priority, on_demand, (second - since_s) * SECOND_US, 1, weights).total / SECOND_US)
        for second in range(since_s, LAST_S + 1, 4)
    ]


def x(second: float) -> float:
    return round(LEFT + second / LAST_S * (WIDTH - LEFT - RIGHT), 1)


def y(total: float) -> float:
    return round(HEIGHT - BOTTOM - total / HIGHEST * (HEIGHT - TOP - BOTTOM), 1)


def draw() -> str:
    drawing = Drawing(
        HEIGHT,
        "Scores of five jobs over time",
        "All lines rise. Those of queued jobs are parallel: 16 points a second. Those of on-demand jobs are three times as steep "
        "for 256 s, then parallel to the others. A queued job of priority 0 has the score of a job of priority 5 that is "
        "published 320 s later.",
    )
    for total in range(0, HIGHEST + 1, 4000):
        drawing.line([(LEFT, y(total)), (WIDTH - RIGHT, y(total))], "line-grid")
        drawing.text(LEFT - 8, y(total) + 5, f"{total:,}", "small fill-soft", "end")
    for second in range(0, LAST_S + 1, 128):
        drawing.text(x(second), HEIGHT - BOTTOM + 20, f"{second} s", "small fill-soft", "middle")
    for number, (label, priority, on_demand, since_s, colour, look) in enumerate(JOBS):
        line = points(priority, on_demand, since_s)
        drawing.line([(x(second), y(total)) for second, total in line], f"thick line-{colour}{look}")
        base = HEIGHT - BOTTOM + 48 + 24 * number
        drawing.line([(LEFT, base - 5), (LEFT + 34, base - 5)], f"thick line-{colour}{look}")
        drawing.text(LEFT + 44, base, label, "small")
    return drawing.svg()
