"""Our remote control commands: `inspect affinity`; `control affinity_drain`, `affinity_resume`, `affinity_priority`.

Every `celery` command imports this module, so that `celery inspect` offers the commands. It imports the modules of the
worker only when a command runs. Commands belong to a process and not to an app: a worker on another transport replies
with an error that names the transport.
"""

from typing import TYPE_CHECKING

from celery.worker import control

if TYPE_CHECKING:
    from .control_commands import ControlState, Reply


@control.inspect_command()
def affinity(state: "ControlState", **_: object) -> "Reply":
    """Show this worker's types, slots, claims and settings."""
    from .control_commands import describe

    return describe(state)


@control.control_command()
def affinity_drain(state: "ControlState", **_: object) -> "Reply":
    """Take no new jobs, and return the jobs that have not started, until affinity_resume."""
    from .control_commands import drain

    return drain(state)


@control.control_command()
def affinity_resume(state: "ControlState", **_: object) -> "Reply":
    """Take jobs again after affinity_drain."""
    from .control_commands import resume

    return resume(state)


@control.control_command(args=[("priority", int)], signature="<priority>")
def affinity_priority(state: "ControlState", priority: int, **_: object) -> "Reply":
    """Set this worker's priority among equally specialised workers, until it restarts."""
    from .control_commands import set_priority

    return set_priority(state, priority)
