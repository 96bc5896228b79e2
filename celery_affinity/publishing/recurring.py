"""Conversion of a recurring call to an entry for the server, and of a due entry to a job.

The call is stored as its signature. When it is due, any process of the app converts it to a message.
"""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from celery import Celery
from celery.canvas import Signature
from kombu.utils.json import dumps, object_hook

from ..clock import SECOND_US
from ..errors import OptionError, refuse
from ..options.affinity import as_affinity
from ..options.due_times import refuse_fixed_deadline
from ..options.key_templates import derived_task_id
from ..options.recurring import Recurring, RecurringCall, check_name, check_since, check_stale_after
from ..scheduler.messages import DueCall
from ..schema.constants import MAX_SIGNATURE
from ..schema.job_record import NewJob
from ..schema.rules_codec import decode_rules
from ..schema.untrusted import are_usual_types, loads
from ..schema.values import SECONDS_OR_0
from ..settings.table import HIGHER_FIRST, PREFIX
from . import option_resolution, validation
from .app_config import settings_of, sources_of_task, tasks_of, uses_affinity_transport
from .message import PROPERTY, encode_job
from .publish_call import Capture

#: Options that a recurring call cannot have, because each call gets its own time and id.
_NOT_ACCEPTED = ("eta", "countdown", "task_id")


def call_of_signature(
    app: Celery, name: str, signature: Signature, *, stale_after: float, since: str = "enqueue"
) -> RecurringCall:
    """Return the server's entry for the recurring call of *signature*. Raises OptionError if it cannot recur."""
    check_name(name)
    check_since(since)
    stale_after_us = round(check_stale_after(stale_after) * SECOND_US)
    if not uses_affinity_transport(app.conf.broker_transport):
        raise OptionError(f"recurring {name!r}: a recurring call needs broker_transport 'celery_affinity:Transport'")
    if not isinstance(signature, Signature) or signature.subtask_type:
        raise refuse(f"recurring {name!r}", "a signature of one task, such as reroute.s('HH')", signature)
    for option in _NOT_ACCEPTED:
        if signature.options.get(option) is not None:
            raise OptionError(
                f"recurring {name!r} must have no {option}: each firing has its own, got: {signature.options[option]!r}"
            )
    for option in ("expires", "time_limit", "soft_time_limit"):
        value = signature.options.get(option)
        if isinstance(value, int | float) and (accepted := SECONDS_OR_0(value)):
            raise refuse(f"{option} of recurring {name!r}", accepted, value)
    refuse_fixed_deadline(signature.options, f"deadline of recurring {name!r}")
    type_, merge_key = _match_rule(app, name, signature)
    return RecurringCall(
        name=name,
        task=signature.task,
        type=type_,
        merge_key=merge_key,
        stale_after_us=stale_after_us,
        since=since,
        signature=_serialized(name, signature),
    )


def calls_in_conf(app: Celery) -> Iterator[tuple[str, RecurringCall | OptionError]]:
    """Yield each name in ``affinity_recurring`` with its entry, or with the error in it."""
    for name, recurring in settings_of(app).recurring.items():
        try:
            yield (
                name,
                call_of_signature(
                    app, name, _signature(app, recurring), stale_after=recurring.stale_after, since=recurring.since
                ),
            )
        except OptionError as exc:
            yield name, exc


def _signature(app: Celery, recurring: Recurring) -> Signature:
    if recurring.task not in app.tasks:
        raise OptionError(f"{PREFIX}recurring: the app has no task {recurring.task!r}")
    return Signature(recurring.task, tuple(recurring.args), dict(recurring.kwargs), dict(recurring.options), app=app)


def _match_rule(app: Celery, name: str, signature: Signature) -> tuple[str, str]:
    """Return the type and the encoded merge key of a call of *signature*, which matching calls share."""
    options, task_name = dict(signature.options), signature.task
    validation.check_call_options(app, task_name, options)
    task = tasks_of(app).get(task_name)
    routed = app.amqp.router.route(dict(options), task_name, signature.args, signature.kwargs, task)
    settings, type_ = settings_of(app), str(getattr(routed.get("queue"), "name", None) or "")
    if not type_ or not settings.schedules(type_):
        raise OptionError(f"recurring {name!r} needs a queue that is scheduled ({PREFIX}queues), got: {type_!r}")
    sources = sources_of_task(task_name, task, settings)
    sources = sources._replace(options=routed, call_affinity=as_affinity(routed.get("affinity")))
    rule = option_resolution.resolve_keys(task_name, task, sources)
    rules = "" if rule is None else rule.text(signature.args, signature.kwargs)
    merge = decode_rules(rules).merge
    if merge is None:
        raise OptionError(f"recurring {name!r} needs a task with a merge key: that is what 'matching' means")
    return type_, merge.key


def _serialized(name: str, signature: Signature) -> str:
    try:
        text = str(dumps(dict(signature)))
    except (TypeError, ValueError) as exc:
        raise OptionError(f"recurring {name!r} must be a signature that JSON can represent: {exc}") from exc
    if len(text) > MAX_SIGNATURE:
        raise OptionError(f"recurring {name!r} must have at most {MAX_SIGNATURE:,} characters, got: {len(text):,}")
    return text


def recurring_job(app: Celery, due: DueCall) -> NewJob:
    """Return the job of a due entry. Repeated attempts for the same due time get the same id.

    ``due.due`` "": there is no repetition. The call has the lowest priority and is not on-demand, unless its signature
    sets these options. Raises OptionError if *due* is not a call, and the errors of ``apply_async``.
    """
    name, signature = due.name, _read(app, due)
    publish_id = f"recurring {name} {due.due or secrets.token_hex(16)}"
    task_id = derived_task_id(publish_id)
    capture = Capture()
    _match_rule(app, name, signature)  # checks the queue first: a call to another queue would be sent at each attempt
    signature.apply_async(task_id=task_id, add_to_parent=False, **_urgency(app, signature), **{PROPERTY: capture})
    if not capture:
        raise OptionError(
            f"recurring {name!r} needs a queue that is scheduled ({PREFIX}queues): the call went elsewhere"
        )
    captured = capture[0]
    return encode_job(captured.queue, captured.message, replace(captured.header, publish_id=publish_id))


def _read(app: Celery, due: DueCall) -> Signature:
    try:
        content: Any = loads(due.signature, longest=MAX_SIGNATURE, object_hook=object_hook)
    except ValueError:
        content = None
    if not isinstance(content, Mapping) or content.get("task") != due.task:
        raise OptionError(f"recurring {due.name!r}: its signature in Redis is not a call of {due.task}")
    if not are_usual_types(content.get("options")):
        raise OptionError(f"recurring {due.name!r}: its signature in Redis has options with numbers out of range")
    return Signature.from_dict(dict(content), app=app)


def _urgency(app: Celery, signature: Signature) -> dict[str, Any]:
    options: dict[str, Any] = {}
    affinity = as_affinity(signature.options.get("affinity"))
    if signature.options.get("priority") is None and affinity.priority is None:
        lowest = 0 if settings_of(app).priority_order == HIGHER_FIRST else 10
        options["affinity"] = replace(affinity, priority=lowest)
    if signature.options.get("on_demand") is None and affinity.on_demand is None:
        options["on_demand"] = False
    return options
