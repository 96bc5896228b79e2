"""What `celery affinity top` shows, as a terminal. A test compares the text with what the command prints."""

import re
from collections.abc import Iterator
from pathlib import Path

from .drawing import Drawing

SHOWN = Path(__file__).with_name("top.txt")
COMMAND = "$ celery -A shop affinity top"
CHARACTER, LINE = 7.2, 19
_STYLED = re.compile(r"\x1b\[(\d+)m(.*?)(?:\x1b\[0m|$)")


#: Looks of the colours that are used.
_LOOKS = {"31": "fill-red", "32": "fill-green"}


def draw() -> str:
    lines = [COMMAND, "", *SHOWN.read_text().rstrip("\n").splitlines()]
    columns = max(len(_STYLED.sub(r"\2", line)) for line in lines)
    drawing = Drawing(
        LINE * len(lines) + 66,
        "celery affinity top",
        "A terminal with three tables: each type with its pending jobs, its free and its busy slots; each worker with its types and "
        "slots; and the next jobs with score, wait and task id.",
        width=round(columns * CHARACTER + 40),
    )
    for number, colour in enumerate(("red", "orange", "green")):
        drawing.box(20 + 18 * number, 16, 11, 11, f"fill-{colour}", 6)
    for number, line in enumerate(lines):
        for column, words, look in _parts(line):
            drawing.mono(20 + column * CHARACTER, 58 + LINE * number, words, CHARACTER, look)
    return drawing.svg()


def _parts(line: str) -> Iterator[tuple[int, str, str]]:
    """Yield column, words and look of each part of *line* that has one look."""
    column = position = 0
    for found in [*_STYLED.finditer(line), None]:
        plain = line[position : found.start() if found else None]
        if plain:
            yield column, plain, ""
        if found:
            yield column + len(plain), found[2], _LOOKS.get(found[1], "bold")
            column += len(plain) + len(found[2])
            position = found.end()
