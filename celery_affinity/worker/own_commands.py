"""Our remote control commands: `inspect affinity`; `control affinity_drain`, `affinity_resume`, `affinity_priority`.

Every `celery` command imports this module, so that `celery inspect` offers the commands. It imports no other module of
the worker. Commands belong to a process and not to an app: a worker on another transport replies with an error that
names the transport.
"""

from typing import TYPE_CHECKING

from celery.worker import control

from ..policy import placement

if TYPE_CHECKING:
    from .bootstep import AffinityBootstep
    from .control_commands import ControlState, Reply


def step_of(state: "ControlState") -> "AffinityBootstep | None":
    """Return the worker's bootstep, or None in a worker on another transport."""
    step: AffinityBootstep | None = getattr(state.consumer, "affinity", None)
    return step


def _refuse_other_transport(state: "ControlState") -> "Reply":
    transport = state.app.conf.broker_transport
    return control.nok(f"this worker's broker_transport is {transport!r}")  # type: ignore[no-any-return]


@control.inspect_command()
def affinity(state: "ControlState", **_: object) -> "Reply":
    """Show this worker's types, slots, claims and settings."""
    step = step_of(state)
    return _refuse_other_transport(state) if step is None else step.describe()


@control.control_command()
def affinity_drain(state: "ControlState", **_: object) -> "Reply":
    """Take no new jobs, and return the jobs that have not started, until affinity_resume."""
    step = step_of(state)
    if step is None:
        return _refuse_other_transport(state)
    returned, running = step.drain()
    return control.ok(f"takes no new jobs; {returned} returned to the queue, {running} running")  # type: ignore[no-any-return]


@control.control_command()
def affinity_resume(state: "ControlState", **_: object) -> "Reply":
    """Take jobs again after affinity_drain."""
    step = step_of(state)
    if step is None:
        return _refuse_other_transport(state)
    for member in step.members.joined:
        member.resume()
    return control.ok("takes jobs")  # type: ignore[no-any-return]


@control.control_command(args=[("priority", int)], signature="<priority>")
def affinity_priority(state: "ControlState", priority: int, **_: object) -> "Reply":
    """Set this worker's priority among equally specialised workers, until it restarts."""
    step = step_of(state)
    if step is None:
        return _refuse_other_transport(state)
    if accepted := placement.check_worker_priority(priority):
        return control.nok(f"priority must be {accepted}, got: {priority!r}")  # type: ignore[no-any-return]
    for member in step.members.joined:
        member.set_priority(priority)
    return control.ok(f"has priority {priority}")  # type: ignore[no-any-return]
