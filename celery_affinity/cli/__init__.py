"""``celery -A proj affinity ...``: every command, by the module that has it.

A command reads options, asks a module below for a report, and shows it as text or as JSON; commands decide nothing.
Read `look` first, where reports become commands. A new command is added to the list below as well.
"""

import click

from ..worker import remote_control  # noqa: F401  # so that `celery inspect` knows our commands
from .acting import cancel, move, prioritise
from .check import check_command
from .dead import dead
from .jobs import jobs
from .keys import keys
from .look import explain, pending, status, top
from .metrics import metrics
from .pauses import pause, resume
from .recurring import recurring
from .run import dispatcher
from .scale import scale, scale_in
from .settings import settings
from .up import up
from .web import web


@click.group()
def affinity() -> None:
    """Schedule tasks by affinity: look at the fleet, change its settings, run a dispatcher."""


for command in (
    status,
    explain,
    pending,
    top,
    jobs,
    cancel,
    move,
    prioritise,
    keys,
    recurring,
    pause,
    resume,
    dead,
    check_command,
    settings,
    scale,
    scale_in,
    dispatcher,
    web,
    metrics,
    up,
):
    affinity.add_command(command)
