"""Draws SVG plots: bars that compare subjects, and lines of growth over logarithmic axes."""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH = 760
COLOURS = {"affinity": "#c2410c", "before": "#ea9a5b", "stock": "#0369a1", "dramatiq": "#15803d", "floor": "#9ca3af"}
_PALETTE = ("#c2410c", "#0369a1", "#15803d", "#7c3aed", "#6b7280")

_LABELS, _VALUES, _ROW = 260, 90, 22
_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 300, 60, 170, 15, 40


class Bar(NamedTuple):
    """A median, and the lowest and highest value of the rounds."""

    label: str
    value: float
    low: float
    high: float


class Line(NamedTuple):
    """A line through points (x, y). Both values must be positive."""

    label: str
    points: Sequence[tuple[float, float]]


def bars(data: Sequence[Bar]) -> str:
    """Return horizontal bars in the colours of their systems, each with the range of its rounds."""
    scale = (WIDTH - _LABELS - _VALUES) / (max((bar.high for bar in data), default=0) or 1)
    parts = []
    for number, bar in enumerate(data):
        y = number * _ROW + 4
        middle = y + _ROW / 2 - 2
        low, high, end = (_LABELS + max(0.0, value) * scale for value in (bar.low, bar.high, bar.value))
        parts += [
            f'<text x="{_LABELS - 8}" y="{middle + 4:.0f}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect x="{_LABELS}" y="{y}" width="{end - _LABELS:.1f}" height="{_ROW - 6}" fill="{_colour(bar)}"/>',
            f'<path d="M{low:.1f} {middle:.0f}H{high:.1f}" stroke="#111" stroke-width="1.5"/>',
            f'<text x="{max(end, high) + 6:.1f}" y="{middle + 4:.0f}">{_short(bar.value)}</text>',
        ]
    return _svg(len(data) * _ROW + 8, parts)


def lines(data: Sequence[Line], x_label: str, y_label: str) -> str:
    """Return lines over two logarithmic axes."""
    xs = [x for line in data for x, _ in line.points]
    ys = [y for line in data for _, y in line.points]
    x_of = _logarithmic(min(xs), max(xs), _LEFT, WIDTH - _RIGHT)
    y_of = _logarithmic(10 ** math.floor(math.log10(min(ys))), max(ys), _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<text x="{x_of(x):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{_short(x)}</text>'
        for x in sorted(set(xs))
    ]
    for power in range(math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))):
        y = y_of(10.0**power)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(10.0**power)}</text>')
    for line, colour in zip(data, _PALETTE, strict=False):
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line.points)
        x, y = line.points[-1]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{colour}"/>' for x, y in line.points]
        parts.append(f'<text x="{x_of(x) + 8:.1f}" y="{y_of(y) + 4:.1f}" fill="{colour}">{escape(line.label)}</text>')
    parts.append(f'<text x="{WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{escape(x_label)}</text>')
    parts.append(f'<text x="4" y="{_TOP - 3}">{escape(y_label)}</text>')
    return _svg(_HEIGHT, parts)


def _logarithmic(low: float, high: float, start: float, end: float):
    span = math.log(high / low) or 1.0
    return lambda value: start + (end - start) * math.log(value / low) / span


def _colour(bar: Bar) -> str:
    return next((colour for system, colour in COLOURS.items() if system in bar.label), _PALETTE[-1])


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _svg(height: float, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">{"".join(parts)}</svg>'
    )
