"""``celery -A proj affinity ...``: every command, by the module that has it.

A command reads options, asks a module below for a report, and shows it as text or as JSON; commands decide nothing.
Read `look` first, where reports become commands. A new command is a row of `_MODULES`. `celery` loads this module
whichever of its commands it runs, so each of ours is loaded when it is asked for.
"""

import click

from ..rules.redis_keys import COHORT
from ..worker import own_commands  # noqa: F401  # so that `celery inspect` knows our commands
from . import worker_options
from .loads_on_use import loading

worker_options.add()

#: Name of a command, as people type it -> the module that has it, in the order of `celery affinity --help`.
_MODULES = {
    "status": "look",
    "explain": "look",
    "pending": "look",
    "top": "look",
    "jobs": "jobs",
    "cancel": "acting",
    "move": "acting",
    "prioritise": "acting",
    "keys": "keys",
    "tenants": "tenants",
    "recurring": "recurring",
    "lab": "lab",
    "pause": "pauses",
    "resume": "pauses",
    "dead": "dead",
    "check": "check",
    "settings": "settings",
    "cohorts": "cohorts",
    "scale": "scale",
    "scale-in": "scale",
    "dispatcher": "run",
    "web": "web",
    "metrics": "metrics",
    "up": "up",
}


@click.group(cls=loading(__name__, _MODULES))
@click.option("--cohort", help="The cohort that a command is about. Default: all.")
@click.pass_context
def affinity(ctx: click.Context, cohort: str | None) -> None:
    """Schedule tasks by affinity: look at the fleet, change its settings, run a dispatcher."""
    ctx.meta[COHORT] = cohort
