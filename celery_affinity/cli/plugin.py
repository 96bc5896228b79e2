"""What every `celery` command loads of this package: a group with lazily loaded commands, and the worker option."""

from collections.abc import Mapping
from importlib import import_module

import click
from celery.bin.worker import worker

from ..policy.placement import LARGEST

PRIORITY = click.Option(
    ["--affinity-priority"],
    type=click.IntRange(-LARGEST, LARGEST),
    envvar="CELERY_AFFINITY_PRIORITY",
    help='celery_affinity: priority of this worker among equally specialised ones, with affinity_placement="weighted". '
    "By default the worker with the lower number is preferred.",
)


def lazy_group(package: str, modules: Mapping[str, str | None]) -> type[click.Group]:
    """Return the class of a group that imports the module of a command when the command is used.

    *modules*: command name -> module of *package*, or None for a declared report, in the order of `--help`.
    """

    class LazyGroup(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return [*modules]

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in modules:
                return None
            module = modules[cmd_name]
            if module is None:
                from .framework import report_command  # not at the top: it imports reports

                return report_command(cmd_name)
            values = vars(import_module(f".{module}", package)).values()
            return next(value for value in values if isinstance(value, click.Command) and value.name == cmd_name)

    return LazyGroup


def add_worker_options() -> None:
    """Add our options to `celery worker`.

    Celery's place for them, ``app.user_options``, belongs to an app, which does not exist when `celery` loads commands.
    """
    if PRIORITY not in worker.params:
        worker.params.append(PRIORITY)
