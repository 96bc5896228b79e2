"""``celery -A proj affinity lab ...``: record a fleet, schedule the record again, ask "what if".

A new command is a row of `_MODULES`, which names the module that has it.
"""

from importlib import import_module

import click

#: Name of a command, as people type it -> the module that has it, in the order of `--help`.
_MODULES: dict[str, str] = {
    "replay": "replay",
    "whatif": "whatif",
    "advise": "advise",
    "optimum": "optimum",
    "record": "record",
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
def lab() -> None:
    """Record what the fleet does, schedule the record again, and ask what more slots or other settings would change."""
