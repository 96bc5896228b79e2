"""Writes the results as one HTML page with tables and SVG plots. The page loads no other files."""

from collections.abc import Mapping, Sequence
from html import escape

from .plots import Bar, Line, bars, lines
from .report import Outcome, goal_rows, part_rows
from .results import Part, Results

_STYLE = """
body { font-family: sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; font-size: 90%; }
td, th { padding: .2em .6em; border-bottom: 1px solid #ddd; text-align: right; }
td:first-child, th:first-child { text-align: left; }
.ok { color: #15803d; } .missed { color: #c2410c; } .not { color: #6b7280; }
"""

#: Part -> name of the plotted number -> title with unit.
_PLOTTED = {
    "publish": {"rate": "messages a second", "client_us": "CPU time of the client, µs a message"},
    "drain": {"rate": "tasks a second", "worker_us": "CPU time of the worker, µs a task"},
    "latency": {"p50": "median, ms", "p99": "99 %, ms"},
    "idle": {"requests": "requests a second"},
    "load": {"p99": "99th percentile of the on-demand jobs' waits, ms"},
    "slots": {"used": "share of the slots' time"},
    "observers": {"median_ms": "median of a look, ms", "command_ms": "its longest command on the server, ms"},
    "page": {"broker_percent": "share of the broker's core, %", "rate_of_a_core": "jobs by id, a second on a core"},
    "memory": {"bytes": "bytes a pending job"},
    "sharing": {"rate": "results a second"},
    "metrics": {"rate": "tasks a second"},
    "keys": {"rate": "tasks a second"},
    "tenants": {"rate": "tasks a second"},
    "loss": {"lost": "tasks lost"},
}


def page(about: Mapping[str, object], results: Results, outcomes: Sequence[Outcome]) -> str:
    """Return the page. *about*: the description of the run."""
    sections = ["<h2>Goals</h2>", _table(goal_rows(outcomes), verdicts=True)]
    for name, part in results.items():
        sections += [f"<h2>{escape(name)}</h2>", *_plots(name, part), _table(part_rows(part))]
    described = ", ".join(f"{name} {_plain(value)}" for name, value in about.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Benchmarks of celery_affinity</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>Benchmarks</h1>\n<p>{escape(described)}</p>\n"
        "<p>Values are medians. Thin lines show the range of the rounds. Ratios are medians of ratios per round.</p>\n"
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def _plain(value: object) -> str:
    return " ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, Mapping) else str(value)


def _plots(name: str, part: Part) -> list[str]:
    if name == "arrows":
        return _growth(part)
    plots = []
    for figure, unit in _PLOTTED.get(name, {}).items():
        rounds = {subject: part.rounds(subject, figure) for subject in part.figures}
        data = [
            Bar(subject, part.median(subject, figure) or 0, min(values), max(values))
            for subject, values in rounds.items()
            if values
        ]
        plots.append(f"<h3>{escape(unit)}</h3>{bars(data)}")
    return plots


def _growth(part: Part) -> list[str]:
    """Return a logarithmic plot per axis, from subjects such as `pending 1,000`. The value 0 is omitted."""
    axes: dict[str, list[tuple[int, str]]] = {}
    for subject in part.figures:
        axis, _, value = subject.rpartition(" ")
        axes.setdefault(axis, []).append((int(value.replace(",", "")), subject))
    plots = []
    for axis, scales in axes.items():
        data = [
            Line(
                figure,
                [(value, median) for value, subject in scales if value and (median := part.median(subject, figure))],
            )
            for figure in part.names()
        ]
        plots.append(f"<h3>{escape(axis)}</h3>{lines([line for line in data if line.points], axis, 'µs')}")
    return plots


def _table(rows: Sequence[Sequence[str]], *, verdicts: bool = False) -> str:
    head, *body = rows
    lines_ = [_row(head, "th")]
    for row in body:
        kind = f' class="{row[-1].split()[0]}"' if verdicts else ""
        lines_.append(_row(row, "td", kind))
    return f"<table>{''.join(lines_)}</table>"


def _row(cells: Sequence[str], tag: str, kind: str = "") -> str:
    return f"<tr{kind}>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
