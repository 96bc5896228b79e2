"""``celery -A proj affinity ...``: the group of all commands.

A command reads options, gets a report from a lower package, and prints it as text or JSON; commands decide nothing.
Read `status` first, where reports become commands. A new command is a row of `_MODULES`. `celery` loads this package
for each of its commands, so the modules of our commands are loaded lazily.
"""

import click

from ..schema.keys import COHORT
from ..worker import own_commands  # noqa: F401  # registers our commands with `celery inspect`
from .plugin import add_worker_options, lazy_group

add_worker_options()

#: Command name -> module, in the order of `celery affinity --help`.
_MODULES = {
    "status": "status",
    "explain": "status",
    "pending": "status",
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
    "scale": "scale",
    "scale-in": "scale",
    "dispatcher": "serve",
    "web": "serve",
    "metrics": "serve",
    "up": "serve",
}


@click.group(cls=lazy_group(__name__, _MODULES))
@click.option("--cohort", help="The cohort that a command is about. Default: all.")
@click.pass_context
def affinity(ctx: click.Context, cohort: str | None) -> None:
    """Schedule tasks by affinity: look at the fleet, change its settings, run a dispatcher."""
    ctx.meta[COHORT] = cohort
