"""What a retry finds of its first try: the plain options, the key, and until when it may wait.

A retry drops the properties of the message. But a retry is published while the task runs, and the task's request still
has them.
"""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from celery import current_task
from celery.app.task import Context, Task

from ..clock import now_s
from ..rules import call_options, option_values
from ..rules.keyed.key_rules import TenantKey, are_rules, tenant_in
from .stamp import PROPERTY, Message

#: Name of the trace that says that somebody gave the job another type, mode or priority than the call had.
_MOVED = "moved"


class Until(NamedTuple):
    """The time when a job expires, for a retry. *expires*: as in the message. *until_s*: by this machine's `now_s`."""

    expires: object
    until_s: float


def left_by(task: Task | None, message: Message) -> object:
    """Return the traces of a first try for *message*, which *task* publishes; None if the message is no retry.

    A retry has the task id of the run that publishes it. A task that replaces another has that id, too, but is no
    retry.
    """
    stack = getattr(task, "request_stack", None)
    request = stack.top if stack is not None else None
    if request is None or request.id is None:
        return None
    headers, properties = message["headers"], message["properties"]
    nesting = request.replaced_task_nesting
    if (
        request.id != (headers.get("id") or properties.get("correlation_id"))
        or headers.get("replaced_task_nesting", nesting) != nesting
    ):
        return None
    return _left_in(request.properties)


def passed_on_by_run() -> dict[str, Any]:
    """Return what the job that this thread runs passes on, by option; {} without a job."""
    if not current_task:
        return {}
    traces = _left_in(current_task.request.properties)
    found = option_values.left_in(traces) | {TenantKey.option: tenant_in(rules_in(traces))}
    return {name: value for name, value in found.items() if name in call_options.PASSED_ON and value is not None}


def tenant_of_run() -> str:
    """Return the tenant of the job that this thread runs, "" for none."""
    return tenant_in(rules_in(_left_in(current_task.request.properties))) or "" if current_task else ""


def mode_of(properties: object) -> bool | None:
    """Return the mode (True: on demand) in the properties of a message; None without one."""
    return option_values.left_in(_left_in(properties)).get("on_demand")


def _left_in(properties: object) -> object:
    """Return the traces in a message's properties: only the plain options, if stock Celery sent the message."""
    if not isinstance(properties, Mapping):
        return None
    if PROPERTY in properties:
        return properties[PROPERTY]
    return {name: properties[name] for name in call_options.PLAIN if name in properties} or None


def moved(left: object, on_demand: bool) -> dict[str, object]:
    """Return *left* as the traces of a job that somebody moved, and that is on demand or not."""
    before = left if isinstance(left, dict) else {}
    mode = {"on_demand": on_demand} if bool(before.get("on_demand")) != on_demand else {}
    return {**before, **mode, _MOVED: True}


def move_as(run: Context, other: Context) -> None:
    """Have the retry of *other*, a call that is run with *run*, be moved as that was, if somebody moved it."""
    left = (run.properties or {}).get(PROPERTY)
    if not isinstance(left, Mapping) or not left.get(_MOVED):
        return
    place = {name: run.delivery_info[name] for name in ("exchange", "routing_key", "priority")}
    other.delivery_info = {**(other.delivery_info or {}), **place}
    properties = other.properties or {}
    on_demand = bool(option_values.left_in(left).get("on_demand"))
    other.properties = {**properties, PROPERTY: moved(properties.get(PROPERTY), on_demand)}


def rules_in(left: object) -> str | None:
    """Return the rules that a first try has left, "" for none; None if it has left nothing, or nothing of ours."""
    rules = left.get("rules") if isinstance(left, Mapping) else None
    return rules if are_rules(rules) else None


def expires_at(expires: object, left: object) -> float | None:
    """Return the Unix time, s by this host's clock, at which a retry with the *expires* of its first try expires.

    None if the first try left no time, or a time for another *expires*.
    """
    until = left.get("until") if isinstance(left, Mapping) else None
    if not isinstance(until, Until) or until.expires != expires:
        return None
    return time.time() + until.until_s - now_s()
