"""``celery -A proj affinity ...``: the group of all commands.

A command reads options, gets a report from a lower package, and prints it as text or JSON; commands decide nothing.
Read `framework` first, which makes commands of reports. A new command is a row of `_MODULES`, unless it is a declared
report. `celery` loads this package for each of its commands, so the modules of our commands are loaded lazily.
"""

from importlib import import_module

import click
from celery.bin.worker import worker

from ..policy.placement import LARGEST
from ..reports import REPORTS
from ..schema.keys import COHORT
from ..worker import own_commands  # noqa: F401  # registers our commands with `celery inspect`
from .groups import SuggestingGroup

PRIORITY = click.Option(
    ["--affinity-priority"],
    type=click.IntRange(-LARGEST, LARGEST),
    envvar="CELERY_AFFINITY_PRIORITY",
    help='celery_affinity: priority of this worker among equally specialised ones, with affinity_placement="weighted". '
    "By default the worker with the lower number is preferred.",
)


# Celery's place for them, ``app.user_options``, belongs to an app, which does not exist when `celery` loads commands.
if PRIORITY not in worker.params:
    worker.params.append(PRIORITY)

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
    "requeues": None,
    "tasks": None,
    "run-times": None,
    "memory": None,
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


class _LazyGroup(SuggestingGroup):
    """A group that imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_MODULES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        module = _MODULES[cmd_name]
        if module is None:
            from .framework import report_command  # not at the top: it imports reports

            return report_command(cmd_name)
        values = vars(import_module(f".{module}", __name__)).values()
        return next(value for value in values if isinstance(value, click.Command) and value.name == cmd_name)


@click.group(cls=_LazyGroup)
@click.option("--cohort", help="The cohort that the command applies to. Default: all.")
@click.pass_context
def affinity(ctx: click.Context, cohort: str | None) -> None:
    """Schedule tasks by affinity: look at the fleet, change its settings, run a dispatcher."""
    ctx.meta[COHORT] = cohort
