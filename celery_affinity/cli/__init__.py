"""``celery -A proj affinity ...``: every command, by the module that has it.

A command reads options, asks a module below for a report, and shows it as text or as JSON; commands decide nothing.
Read `look` first, where reports become commands. A new command is a row of `_MODULES`. `celery` loads this module
whichever of its commands it runs, so each of ours is loaded when it is asked for.
"""

import click

from ..schema.keys import COHORT
from ..worker import control_commands  # noqa: F401  # so that `celery inspect` knows our commands
from . import framework
from .framework import lazy_group

framework.add_worker_options()

#: Name of a command, as people type it -> the module that has it, in the order of `celery affinity --help`.
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
