"""Writes an HTML page with sentences and bar charts along a time axis. The page is one file and loads nothing."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

from rich.table import Table

TEMPLATE = Path(__file__).with_suffix(".html")

WAIT_ROW_PX = 6


def write(path: Path, title: str, heading: str, intro: str, sentences: Sequence[str], style: str, body: str) -> Path:
    """Write the page, and return *path*. *style* is CSS, *body* is HTML, and the other arguments are plain text."""
    page = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(title),
        heading=escape(heading),
        intro=escape(intro),
        sentences="".join(f"<li>{escape(sentence)}</li>" for sentence in sentences),
        style=style,
        body=body,
    )
    path.write_text(page, encoding="utf-8")
    return path


def chart(id: str, title: str, note: str, rows: Iterable[str]) -> str:
    header = f'<header><h2>{escape(title)}</h2><span class="soft">{escape(note)}</span></header>'
    inside = f'<div class="scroll"><div class="chart">{"".join(rows)}</div></div>'
    return f'<section id="{id}">{header}{inside}</section>\n'


def row(label: str, note: str, marks: str, classes: str = "", height_px: int | None = None) -> str:
    style = "" if height_px is None else f' style="height:{height_px}px"'
    return (
        f'<div class="row"><label>{escape(label)}<small>{escape(note)}</small></label>'
        f'<div class="{f"lane {classes}".strip()}"{style}>{marks}</div></div>\n'
    )


def mark(
    start_s: float, end_s: float, length_s: float, classes: str, way: str, tip: str, style: str = "", text: str = ""
) -> str:
    """Return a bar from *start_s* to *end_s* in a row of *length_s* seconds. *text* is drawn in it, *tip* is shown on
    hover, and the page highlights all marks with the same *way* together.
    """
    left, width = 100 * start_s / length_s, 100 * (end_s - start_s) / length_s
    return (
        f'<i class="{classes}" style="{style}left:{left:.3f}%;width:{width:.3f}%" data-way="{way}" '
        f'data-tip="{escape(tip)}">{escape(text)}</i>'
    )


def axis(length_s: int) -> str:
    step = next(step for step in (1, 2, 5, 10, 20, 60, 600, length_s) if length_s / step <= 12)
    ticks = "".join(f'<span style="left:{100 * t / length_s:.3f}%">{t} s</span>' for t in range(0, length_s + 1, step))
    return f'<div class="row axis"><label></label><div class="lane">{ticks}</div></div>\n'


def pack_rows(spans: Iterable[tuple[float, float]], gap_s: float = 0.0) -> tuple[list[int], int]:
    """Return a row number for each span, and the number of rows, so that spans in one row do not overlap.

    *spans* must be sorted by their start.
    """
    free_at: list[float] = []
    rows = []
    for start, end in spans:
        row = next((number for number, free in enumerate(free_at) if free < start), len(free_at))
        free_at[row : row + 1] = [end + gap_s]
        rows.append(row)
    return rows, len(free_at)


def table(table: Table) -> str:
    """Return a rich table as HTML."""
    columns = [list(column.cells) for column in table.columns]
    head = "".join(f"<th>{escape(str(column.header))}</th>".replace("\n", "<br>") for column in table.columns)
    rows = ["".join(f"<td>{_cell(cell)}</td>" for cell in row) for row in zip(*columns, strict=True)]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"


def _cell(cell: object) -> str:
    text = escape(str(cell))
    return text.replace("[bold]", "<b>").replace("[/bold]", "</b>")
