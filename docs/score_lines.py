"""Draw the score lines of the scheduling page, from the code: ``python docs/score_lines.py``."""

from pathlib import Path

from celery_affinity.rules.score import MICRO, Weights, score

PAGE = Path(__file__).parent / "explanation" / "score-lines.svg"

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 400, 70, 150, 20, 50
LAST_S, HIGHEST = 600, 24_000
JOBS = [  # label, priority, on demand, enqueued at s, colour; the last lies on the line before, so it is dashed
    ("on demand, P0, at 0 s", 0, True, 0, "#c2410c"),
    ("on demand, P0, at 256 s", 0, True, 256, "#ea9a5b"),
    ("queued, P5, at 0 s", 5, False, 0, "#0369a1"),
    ("queued, P0, at 0 s", 0, False, 0, "#15803d"),
    ("queued, P5, at 320 s", 5, False, 320, "#0369a1"),
]


def points(priority: int, on_demand: bool, since_s: int) -> list[tuple[int, float]]:
    """Return (time in s, score in points) while the job waits, without the rarity term, which all have alike."""
    weights = Weights(rarity=0)
    return [
        (second, score(priority, on_demand, (second - since_s) * MICRO, 1, weights).total / MICRO)
        for second in range(since_s, LAST_S + 1, 4)
    ]


def x(second: float) -> float:
    return LEFT + second / LAST_S * (WIDTH - LEFT - RIGHT)


def y(total: float) -> float:
    return HEIGHT - BOTTOM - total / HIGHEST * (HEIGHT - TOP - BOTTOM)


def draw() -> str:
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for total in range(0, HIGHEST + 1, 4000):
        lines.append(f'<path d="M{LEFT} {y(total):.1f}H{WIDTH - RIGHT}" stroke="#e5e7eb"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y(total) + 4:.1f}" text-anchor="end" fill="#555">{total:,}</text>')
    lines += [
        f'<text x="{x(second):.1f}" y="{HEIGHT - 28}" text-anchor="middle" fill="#555">{second}</text>'
        for second in range(0, LAST_S + 1, 64)
    ]
    lines.append(f'<text x="{x(LAST_S / 2):.1f}" y="{HEIGHT - 8}" text-anchor="middle" fill="#555">time, s</text>')
    for label, priority, on_demand, since_s, colour in JOBS:
        line = points(priority, on_demand, since_s)
        path = "L".join(f"{x(second):.1f} {y(total):.1f}" for second, total in line)
        dash, below = (' stroke-dasharray="6 6"', 16) if label == JOBS[-1][0] else ("", 0)
        lines.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.5"{dash}/>')
        end = y(line[-1][1]) + 4 + below
        lines.append(f'<text x="{WIDTH - RIGHT + 6}" y="{end:.1f}" fill="{colour}">{label}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PAGE.write_text(draw())
