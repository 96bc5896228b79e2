"""The generated files, and the functions that make them."""

from collections.abc import Callable
from pathlib import Path

from . import (
    check,
    commands,
    errors,
    functions,
    http,
    keys,
    log,
    metrics,
    options,
    patches,
    python,
    settings,
    trace_format,
    worker_protocol,
)
from .pictures import a_death, architecture, life_of_a_job, score_lines, specialist, terminal

DOCS = Path(__file__).parents[1]
_REFERENCE, _EXPLANATION = DOCS / "reference", DOCS / "explanation"

PAGES: dict[Path, Callable[[], str]] = {
    _REFERENCE / "settings.md": settings.page,
    _REFERENCE / "options.md": options.page,
    _REFERENCE / "commands.md": commands.page,
    _REFERENCE / "metrics.md": metrics.page,
    _REFERENCE / "errors.md": errors.page,
    _REFERENCE / "check.md": check.page,
    _REFERENCE / "keys.md": keys.page,
    _REFERENCE / "functions.md": functions.page,
    _REFERENCE / "patches.md": patches.page,
    _REFERENCE / "log.md": log.page,
    _REFERENCE / "http.md": http.page,
    _REFERENCE / "worker-protocol.md": worker_protocol.page,
    _REFERENCE / "trace-format.md": trace_format.page,
    _REFERENCE / "python.md": python.page,
}

PICTURES: dict[Path, Callable[[], str]] = {
    _EXPLANATION / "architecture.svg": architecture.draw,
    _EXPLANATION / "life-of-a-job.svg": life_of_a_job.draw,
    _EXPLANATION / "score-lines.svg": score_lines.draw,
    _EXPLANATION / "specialist.svg": specialist.draw,
    _EXPLANATION / "a-death.svg": a_death.draw,
    DOCS / "how-to" / "top.svg": terminal.draw,
}
