"""A picture as SVG, for a light and for a dark page: it has a ground of its own, and follows what the reader's system prefers."""

import re
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from math import atan2, cos, degrees, sin

#: Width in units: on a phone the picture is about 330 px wide, so that its text of 15 units is 9 px high.
WIDTH = 560

#: Colour -> its value on a light page, on a dark page.
COLOURS = {
    "ground": ("#ffffff", "#16181d"),
    "panel": ("#f1f5f9", "#21252d"),
    "edge": ("#94a3b8", "#64748b"),
    "grid": ("#e2e8f0", "#2f3642"),
    "ink": ("#1e293b", "#e2e8f0"),
    "soft": ("#52606f", "#a3b1c2"),
    "on": ("#ffffff", "#0b1220"),
    "blue": ("#0369a1", "#38bdf8"),
    "green": ("#15803d", "#4ade80"),
    "orange": ("#c2410c", "#fb923c"),
    "red": ("#b91c1c", "#f87171"),
}


def _style() -> str:
    rules = [
        "text{font:15px system-ui,sans-serif;fill:var(--ink)}",
        ".small{font-size:13.5px}.code{font-family:ui-monospace,monospace;font-size:13.5px}",
        ".terminal{font:12px ui-monospace,monospace}.bold{font-weight:600}",
        ".line{fill:none;stroke-width:1.6}.thick{stroke-width:2.6}.waits{stroke-width:8}.dashed{stroke-dasharray:6 5}",
        *(f".fill-{name}{{fill:var(--{name})}}.line-{name}{{stroke:var(--{name})}}" for name in COLOURS),
    ]
    light, dark = (";".join(f"--{name}:{pair[index]}" for name, pair in COLOURS.items()) for index in (0, 1))
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}{''.join(rules)}"


class Drawing:
    """A picture of *height* units. *title* and *description* say what it shows to those who do not see it."""

    def __init__(self, height: float, title: str, description: str, width: float = WIDTH) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width * 1.25:g}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f"<style>{_style()}</style>",
            f'<rect width="{width:g}" height="{height:g}" rx="10" class="fill-ground line-grid"/>',
        ]

    def text(self, x: float, y: float, words: str, look: str = "", anchor: str = "start") -> None:
        """Write *words* with their base line at *y*. *look*: small, code, bold, fill-<colour>."""
        place = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{look}"{place}>{escape(words, quote=False)}</text>')

    def mono(self, x: float, y: float, words: str, character: float, look: str = "") -> None:
        """Write *words* as in a terminal: each character is *character* units wide, blanks count."""
        for part in re.finditer(r"\S+(?: \S+)*", words):
            at, length = x + part.start() * character, len(part[0]) * character
            self.parts.append(
                f'<text x="{at:.5g}" y="{y:g}" textLength="{length:.5g}" class="{f"terminal {look}".strip()}">'
                f"{escape(part[0], quote=False)}</text>"
            )

    def box(
        self, x: float, y: float, width: float, height: float, look: str = "fill-panel line-edge", radius: float = 8
    ) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" class="{look}"/>'
        )

    def line(self, points: Sequence[tuple[float, float]], look: str = "line-soft") -> None:
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path d="M{path}" class="line {look}"/>')

    def arrow(self, points: Sequence[tuple[float, float]], colour: str = "soft", look: str = "") -> None:
        """Draw a line along *points*, with a tip at the last one."""
        (from_x, from_y), (x, y) = list(pairwise(points))[-1]
        angle = atan2(y - from_y, x - from_x)
        self.line([*points[:-1], (x - 7 * cos(angle), y - 7 * sin(angle))], f"line-{colour} {look}".strip())
        turn = f'transform="translate({x:g} {y:g}) rotate({degrees(angle):.4g})"'
        self.parts.append(f'<path d="M0 0L-9 -4.5L-9 4.5Z" {turn} class="fill-{colour}"/>')

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>", ""])
