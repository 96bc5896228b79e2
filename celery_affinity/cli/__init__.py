"""``celery -A proj affinity ...``: every command, by the module that has it.

A command reads options, asks a module below for a report, and shows it as text or as JSON; commands decide nothing.
Read `look` first, where reports become commands. A new command is a row of `_MODULES`. `celery` loads this module
whichever of its commands it runs, so each of ours is loaded when it is asked for.
"""

from importlib import import_module

import click

from ..worker import own_commands  # noqa: F401  # so that `celery inspect` knows our commands

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
    "scale": "scale",
    "scale-in": "scale",
    "dispatcher": "run",
    "web": "web",
    "metrics": "metrics",
    "up": "up",
}


class _LoadsOnUse(click.Group):
    """A group that loads the module of a command when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_MODULES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        found = vars(import_module(f".{_MODULES[cmd_name]}", __name__)).values()
        return next(each for each in found if isinstance(each, click.Command) and each.name == cmd_name)


@click.group(cls=_LoadsOnUse)
def affinity() -> None:
    """Schedule tasks by affinity: look at the fleet, change its settings, run a dispatcher."""
