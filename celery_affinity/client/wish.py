"""What a call asks for: its type, its urgency, and the rules of its job. Each comes from the first that says something.

A call's options count more than its task's, and those of a retry's first try lie between the two. Celery has merged the
options of call and task by then; `places` says how the two are told apart.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import Celery

from ..rules import call_options, option_values
from ..rules.affinity import Affinity, affinity_of, as_affinity, in_range, whole_priority
from . import destination, first_try, priority_range, stated_rules
from .of_app import settings_of, tasks_of
from .stamp import Message
from .stated_rules import RuleMaker

if TYPE_CHECKING:
    from .stamping import Sending

#: Options that make the rules of a job.
OF_RULES = frozenset(name for name, option in call_options.OPTIONS.items() if option.field == "rules")


class Wish(NamedTuple):
    """The needs that the message of a call names. The methods get the call, which has its wish.

    *plain*: the plain options (`call_options`). *asked*: the call's ``affinity=``; *own*: the task's; *of_task*: the
    task's ``priority``. *first_try*: what the first try has left for this retry.
    """

    type: str | None
    plain: Mapping[str, Any]
    asked: Affinity
    own: Affinity
    of_task: int | None
    first_try: object

    @classmethod
    def of(cls, call: "Sending", message: Message) -> "Wish":
        """Return what *call*, which publishes *message*, asks for. Raises OptionError, SettingError."""
        task = tasks_of(call.app).get(call.task_name)
        properties = message["properties"]
        affinity = properties.get("affinity")
        left = call.former if call.body is not None else first_try.left_by(task, message)
        option, own = as_affinity(affinity), affinity_of(task)
        if call.task_name in destination.MAPS:
            own = _of_mapped_task(call)
        if call.is_routed:
            type_ = None if affinity == call.routed_by else option.type  # a before_task_publish handler has set it
        else:
            type_ = option.type or _type_without_a_route(call.app, task, call.task_name, properties)
        plain = option_values.plain(properties, option, option_values.left_in(left), own)
        return cls(type_, plain, option, own, getattr(task, "priority", None), left)

    def priority(self, call: "Sending", message: Message) -> int:
        """Return the priority as the app counts it, from 0 to 10.

        The first that is given counts: the call's ``affinity=``, the call's ``priority=``, the task's ``affinity=``,
        the task's ``priority``. Celery hands on one value for both priorities: one that equals the task's counts as the
        task's.
        """
        in_message = message["properties"].get("priority")  # kombu fills it
        # Another priority than at the beginning: a handler of before_task_publish has set it.
        celerys = call.priority if in_message == (call.priority or 0) else in_message
        ours = self.own.priority
        own = (ours, celerys) if celerys == self.of_task else (celerys, ours)
        given = whole_priority(next((each for each in (self.asked.priority, *own) if each is not None), None) or 0)
        counted = in_range(given)
        if counted != given:
            priority_range.warn(call.app, call.task_name, message["headers"], given, counted)
        return counted

    def job_rule(self, call: "Sending", message: Message) -> RuleMaker | None:
        """Return what makes the rules of the job; None if nothing could make any, as for most calls."""
        options, settings = message["properties"], settings_of(call.app)
        parent = first_try.tenant_of_run() if settings.inherit_tenant else ""
        said = self.asked.has_rules or self.own.has_rules or self.first_try or settings.task_rules or parent
        if not said and options.keys().isdisjoint(OF_RULES):
            return None
        return stated_rules.decide(
            call.task_name,
            tasks_of(call.app).get(call.task_name),
            options,
            asked=self.asked,
            left=self.first_try,
            own=self.own,
            parent=parent,
            settings=settings,
        )


def _of_mapped_task(call: "Sending") -> Affinity:
    """Return the affinity of the task that a ``map``, ``starmap`` or ``chunks`` runs, without its rules.

    Rules are filled with the arguments of one call, and a map has the arguments of many.
    """
    body = call.called_with
    name = destination.mapped_by(body[1] if isinstance(body, tuple) and len(body) > 1 else None)
    task = tasks_of(call.app).get(name) if name else None
    asked = affinity_of(task)
    return Affinity(asked.type, asked.priority, asked.on_demand)


def _type_without_a_route(app: Celery, task: Any, name: str, properties: Mapping[str, Any]) -> str | None:
    """Return the type of a task that is published with kombu alone; None if the call names a place of its own."""
    type_ = destination.type_of_task(app, task, name)
    place = properties.get("delivery_info")
    if type_ is None or not isinstance(place, Mapping):
        return type_
    is_default = destination.is_default(app, place.get("exchange"), place.get("routing_key"))
    return type_ if is_default else None
