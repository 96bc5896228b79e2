"""Which file is made by whom."""

from functools import cache
from pathlib import Path

from . import commands, errors, http, keys, log, metrics, options, python, settings, worker_protocol
from .pictures import a_death, architecture, life_of_a_job, score_lines, specialist, terminal

DOCS = Path(__file__).parents[1]


@cache
def made() -> dict[Path, str]:
    """Return the text of each file that is made."""
    reference = DOCS / "reference"
    return {
        reference / "settings.md": settings.page(),
        reference / "options.md": options.page(),
        reference / "commands.md": commands.page(),
        reference / "metrics.md": metrics.page(),
        reference / "errors.md": errors.page(),
        reference / "keys.md": keys.page(),
        reference / "log.md": log.page(),
        reference / "http.md": http.page(),
        reference / "worker-protocol.md": worker_protocol.page(),
        reference / "python.md": python.page(),
        **{
            DOCS / "explanation" / f"{name}.svg": draw()
            for name, draw in (
                ("architecture", architecture.draw),
                ("life-of-a-job", life_of_a_job.draw),
                ("score-lines", score_lines.draw),
                ("specialist", specialist.draw),
                ("a-death", a_death.draw),
            )
        },
        DOCS / "how-to" / "top.svg": terminal.draw(),
    }
