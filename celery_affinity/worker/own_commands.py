"""Our own commands of remote control: `inspect affinity`, `control affinity_drain`, `_resume` and `_priority`.

Commands belong to a process, not to an app: `celery inspect` has to know them, and a worker on another transport
replies with an error that names the transport. What they do is in `remote_control`, which only a worker loads.
"""

from typing import TYPE_CHECKING

from celery.worker import control

if TYPE_CHECKING:
    from .remote_control import Reply, State


@control.inspect_command()
def affinity(state: "State", **_: object) -> "Reply":
    """Show what this worker can do, holds, lends and has been told."""
    from . import remote_control

    return remote_control.describe(state)


@control.control_command()
def affinity_drain(state: "State", **_: object) -> "Reply":
    """Take no new jobs, and give back those that have not started, until affinity_resume."""
    from . import remote_control

    return remote_control.drain(state)


@control.control_command()
def affinity_resume(state: "State", **_: object) -> "Reply":
    """Take jobs again after affinity_drain."""
    from . import remote_control

    return remote_control.resume(state)


@control.control_command(args=[("priority", int)], signature="<priority>")
def affinity_priority(state: "State", priority: int, **_: object) -> "Reply":
    """Give this worker another priority among equally specialised ones, until it restarts."""
    from . import remote_control

    return remote_control.prefer(state, priority)
