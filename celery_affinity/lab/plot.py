"""An SVG plot of waits before and after a change: for each wait, the share of jobs that waited no longer.

The colours follow the reader's theme. The axis of waits is logarithmic and starts at 10 ms; shorter waits are drawn at
its left end.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from html import escape

from ..clock import SECOND_US

_WIDTH, _HEIGHT = 720, 400
_LEFT, _TOP, _RIGHT, _BOTTOM = 56, 48, 24, 52
#: Start of the axis in seconds.
_SHORTEST_S = 0.01
#: Label of both axes.
_AXIS = "wait; the height is the share of jobs that waited no longer"
#: Points per curve, enough for the width of the plot.
_POINTS = 240

_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.page { fill: #ffffff; }
.grid { stroke: #d8dee4; stroke-width: 1; }
.before, .after { fill: none; stroke-width: 2; stroke-linejoin: round; }
.before { stroke: #6e7781; stroke-dasharray: 6 4; }
.after { stroke: #0969da; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.page { fill: #0d1117; }
.grid { stroke: #30363d; }
.before { stroke: #8d96a0; }
.after { stroke: #58a6ff; }
}
"""


def waits_svg(before_us: Iterable[int | None], after_us: Iterable[int | None], title: str) -> str:
    """Return an SVG plot that shows the share of jobs per maximum wait, before and after.

    Waits are in µs, or None for a job that was never claimed; its curve ends below 100 %.
    """
    before, after = list(before_us), list(after_us)
    longest_s = max([_SHORTEST_S * 10, *(us / SECOND_US for us in (*before, *after) if us is not None)])
    parts = [
        f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT}"/>',
        f'<text x="{_LEFT}" y="24">{escape(title)}</text>',
        *_grid(longest_s),
        f'<path class="before" d="{_curve(before, longest_s)}"/>',
        f'<path class="after" d="{_curve(after, longest_s)}"/>',
    ]
    for index, name in enumerate(("before", "after")):
        x = _WIDTH - _RIGHT - 190 + 100 * index
        parts.append(f'<path class="{name}" d="M{x},20L{x + 28},20"/><text x="{x + 34}" y="24">{name}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
    lines = [head, f"<title>{escape(title)}</title>", f"<style>\n{_STYLE}</style>", *parts, "</svg>"]
    return "\n".join(lines) + "\n"


def _curve(waits_us: Sequence[int | None], longest_s: float) -> str:
    sorted_waits_us = sorted(us for us in waits_us if us is not None)
    points = []
    for index in range(_POINTS + 1):
        wait_s = _SHORTEST_S * (longest_s / _SHORTEST_S) ** (index / _POINTS)
        within = bisect_right(sorted_waits_us, wait_s * SECOND_US + 1) / max(1, len(waits_us))
        points.append(f"{_x(wait_s, longest_s):.1f},{_y(within):.1f}")
    return "M" + "L".join(points)


def _grid(longest_s: float) -> list[str]:
    elements = []
    for percent in (0, 25, 50, 75, 100):
        y = _y(percent / 100)
        elements.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        elements.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>')
    for power in range(round(math.log10(_SHORTEST_S)), math.floor(math.log10(longest_s)) + 1):
        x = _x(10.0**power, longest_s)
        elements.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        elements.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{10.0**power:g} s</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    elements.append(f'<text x="{middle}" y="{_HEIGHT - 12}" text-anchor="middle">{_AXIS}</text>')
    return elements


def _x(wait_s: float, longest_s: float) -> float:
    share = math.log(max(wait_s, _SHORTEST_S) / _SHORTEST_S) / math.log(longest_s / _SHORTEST_S)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)
