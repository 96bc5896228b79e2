"""A group of commands that loads the module of a command when that command is asked for."""

from collections.abc import Mapping
from importlib import import_module

import click


class LoadsOnUse(click.Group):
    """*modules*: name of a command, as people type it -> the module of *package* that has it, in the order of `--help`.

    `celery` loads this package whichever of its commands it runs: so it loads no more than the names.
    """

    package: str
    modules: Mapping[str, str]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.modules]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.modules:
            return None
        found = vars(import_module(f".{self.modules[cmd_name]}", self.package)).values()
        return next(each for each in found if isinstance(each, click.Command) and each.name == cmd_name)


def loading(its_package: str, its_modules: Mapping[str, str]) -> type[LoadsOnUse]:
    """Return the class of a group whose commands are in *its_modules* of *its_package*."""

    class Group(LoadsOnUse):
        package, modules = its_package, its_modules

    return Group
