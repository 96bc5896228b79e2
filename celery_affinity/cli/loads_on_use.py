"""Groups of commands that load the module of a command when that command is asked for."""

from collections.abc import Mapping
from importlib import import_module

import click


def loading(package: str, modules: Mapping[str, str]) -> type[click.Group]:
    """Return the class of a group that knows no more than the names of its commands until one is asked for.

    *modules*: name of a command, as people type it -> the module of *package* that has it, in the order of `--help`.
    `celery` loads this package whichever of its commands it runs.
    """

    class LoadsOnUse(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return [*modules]

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in modules:
                return None
            found = vars(import_module(f".{modules[cmd_name]}", package)).values()
            return next(each for each in found if isinstance(each, click.Command) and each.name == cmd_name)

    return LoadsOnUse
