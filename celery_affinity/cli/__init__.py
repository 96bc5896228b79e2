"""``celery -A proj affinity ...``: the group of all commands.

A command reads options, gets a report from a lower package, and prints it as text or JSON; commands decide nothing.
Read `framework` first, which makes commands of reports. A new command is a row of `_MODULES`, unless it is a declared
report. `celery` loads this package for each of its commands, so the modules of our commands are loaded lazily.
"""

import click

from ..reports import REPORTS
from ..schema.keys import COHORT
from ..worker import own_commands  # noqa: F401  # registers our commands with `celery inspect`
from .plugin import add_worker_options, lazy_group

add_worker_options()

#: Command name -> module, or None for a declared report, in the order of `celery affinity --help`.
_MODULES: dict[str, str | None] = {
    "status": None,
    "explain": "status",
    "pending": None,
    "top": "status",
    "jobs": "jobs",
    "cancel": "jobs",
    "move": "jobs",
    "prioritise": "jobs",
    "keys": "keys",
    "tenants": "keys",
    "recurring": "recurring",
    "lab": "lab",
    "pause": "settings",
    "resume": "settings",
    "dead": "dead",
    "check": "check",
    "settings": "settings",
    "cohorts": "settings",
    "scale": None,
    "scale-in": "scale",
    "dispatcher": "serve",
    "web": "serve",
    "metrics": "serve",
    "up": "serve",
}
_MODULES |= {name: None for name in REPORTS if name.isidentifier() and name not in _MODULES}


@click.group(cls=lazy_group(__name__, _MODULES))
@click.option("--cohort", help="The cohort that a command is about. Default: all.")
@click.pass_context
def affinity(ctx: click.Context, cohort: str | None) -> None:
    """Schedule tasks by affinity: look at the fleet, change its settings, run a dispatcher."""
    ctx.meta[COHORT] = cohort
