"""Resolution of a call's options: its type, its urgency, and the rules of its job.

Each option comes from the first source that sets it. A call's options override the task's; the options of a retry's
first attempt are in between. Celery has already merged the options of call and task; `option_sources` distinguishes
them.

Keys (exclusive, rate, merge key, tenant) and the locality hint have these sources:

1. the call: its ``exclusive=``, ``rate=``, ``tenant=``, ``locality=``, or the fields of its ``affinity=``; its
   ``merge_key=``;
2. for a retry, the first attempt;
3. the task's ``affinity=``;
4. for a tenant, the task that publishes the call while it runs (``affinity_inherit_tenant``);
5. a name pattern in ``affinity_task_rules``.

With a tenant, the rules also state if the job is preemptible, set by the call, the first attempt, the task, or its
name. False in the call removes that kind of key, regardless of its source. A str as ``exclusive=``, ``tenant=`` or
``merge_key=`` of a call is a literal key. Any other key is a template or a function of the call's arguments, named by
the task's parameters; if the task is not available, only keyword arguments have names. Callbacks and later steps of a
chain inherit only the tenant (`canvas`).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import Celery
from celery.app.task import Task

from ..errors import OptionError, refuse
from ..log_limit import limited_logger
from ..options import call_options
from ..options.affinity import (
    NEEDS_LATE_ACKS,
    RULES,
    WORDS,
    Affinity,
    affinity_of,
    as_affinity,
    check_preemptible,
    clamp_priority,
    only_tasks_merge,
    whole_priority,
)
from ..options.call_options import KEYS
from ..options.key_templates import Arguments, CallArguments, arguments_read_by, fill_template
from ..options.keys import (
    Rule,
    TenantKey,
    ValueRule,
    check_tenant,
    keeps_order,
    rule_of_call,
    rule_of_text,
    specificity,
)
from ..options.merge import Merge, merge_key
from ..schema.rules_codec import as_preemptible, decode_rules, join_rules
from ..schema.untrusted import describe_shape
from . import option_checks, option_sources, routing
from .app_config import rules_by_name, settings_of, tasks_of
from .message import Message
from .message_body import MAX_CHARACTERS, read_body
from .option_sources import rules_in

if TYPE_CHECKING:
    from ..settings.table import Settings
    from .publish_call import PublishCall

logger = limited_logger(__name__)
_CALL_ARGUMENTS = CallArguments()
#: Options whose rules precede the keys in a job's rules, in order.
_BEFORE_KEYS = (Merge.option, *(rule.option for rule in WORDS))
#: Limits for merged calls if the task is not available. Only the worker needs the other fields.
_DEFAULT_MERGE = Merge("any", keep="first")


class KeyResolver(NamedTuple):
    """Makes the rules of a call's job from the call's arguments."""

    task_name: str
    arguments: Arguments
    #: Parts of the rules, in order. A str is the part itself, "" for none.
    parts: tuple[Rule | Merge | ValueRule | str, ...]
    #: True if the call or its first attempt set a part. A retry keeps that part, even if it is "".
    is_explicit: bool
    #: True if the job can be preempted, provided that it has a tenant.
    preemptible: bool = False

    @property
    def is_fixed(self) -> bool:
        """True if the rules do not depend on the arguments."""
        return all(isinstance(part, str) for part in self.parts)

    def text(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the rules of the job of a call with these arguments, or "".

        Raises OptionError if they do not make a valid key, and any error of a function that makes keys.
        """
        text = join_rules(*(self._part(part, args, kwargs) for part in self.parts))
        return as_preemptible(text, self.preemptible) if self.preemptible else text

    def _part(self, rule: Rule | Merge | ValueRule | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        if isinstance(rule, str):
            return rule
        if isinstance(rule.key, str):
            key = fill_template(rule.option, rule.key, self.task_name, self.arguments, args, kwargs)
        else:
            key = rule.key(tuple(args), dict(kwargs))
            if key is not None and not isinstance(key, str):
                raise refuse(f"key of {rule.option}, as its function returns it,", "a text or None", key)
        return "" if key is None else rule.text(key)


def resolve_keys(
    task_name: str,
    task: Task | None,
    options: Mapping[str, Any],
    *,
    affinity: Affinity,
    retry_state: object,
    task_affinity: Affinity,
    parent: str,
    settings: "Settings",
) -> KeyResolver | None:
    """Return the resolver for the rules of a call with *options*, or None if no source sets a rule.

    Raises OptionError for invalid options.

    Args:
        task_name: the name of the task.
        task: the task, if the app has it.
        options: the options of the call.
        affinity: the call's ``affinity=``.
        retry_state: the retry state of the first attempt.
        task_affinity: the task's affinity.
        parent: the tenant that the call inherits, or "".
        settings: the settings of the app.
    """
    if affinity.merge is not None:
        raise only_tasks_merge(affinity.merge)
    named, inherited = rules_by_name(task_name, settings), _inherited_parts(retry_state)
    others = (affinity.preemptible, _inherited_preemptible(retry_state), task_affinity.preemptible, named.preemptible)
    preemptible = _resolve_preemptible(task_name, task, options, others)
    merge = task_affinity.merge or named.merge or (_DEFAULT_MERGE if task is None else None)
    explicit: dict[str, Rule | Merge | ValueRule | str | None] = {
        Merge.option: _merge_rule(task_name, merge, options, inherited)
    }
    explicit |= {word.option: _single_token_rule(word, options, affinity, inherited) for word in WORDS}
    explicit |= {option: _key_rule(option, options, affinity, inherited) for option in (*KEYS, TenantKey.option)}
    order = [*inherited] or RULES
    parts = {option: getattr(task_affinity, option) or getattr(named, option) for option in order}
    if parent and task_affinity.tenant is None:
        parts[TenantKey.option] = check_tenant(parent)
    parts |= {option: part for option, part in explicit.items() if part is not None}
    if not any(part is not None for part in parts.values()):
        return None
    is_explicit = any(part is not None for part in explicit.values())
    return KeyResolver(task_name, _arguments_of(task), _in_order(parts), is_explicit, preemptible)


def _in_order(parts: Mapping[str, Rule | Merge | ValueRule | str | None]) -> tuple[Rule | Merge | ValueRule | str, ...]:
    """Return *parts* of rules in the order of a job's rules: merge rule, hint, narrower key, other key, tenant.

    The tenant is last, so that a job waiting for its key blocks no other jobs of its tenant. A key that is reserved for
    retries precedes the rate: otherwise another job waiting for the key could pass the rate before the retry.
    """
    keys = [part or "" for option, part in parts.items() if option in KEYS and not isinstance(part, Merge | ValueRule)]
    before = (parts[name] or "" for name in _BEFORE_KEYS)
    keys.sort(key=lambda rule: (keeps_order(rule), specificity(rule)), reverse=True)
    return *before, *keys, parts[TenantKey.option] or ""


def _inherited_parts(retry_state: object) -> dict[str, str]:
    """Return the parts of the first attempt's rules in their order; {} if there is no retry state."""
    kept = rules_in(retry_state)
    if kept is None:
        return {}
    texts = decode_rules(as_preemptible(kept, False)).texts
    parts = {option: texts.get(option, "") for option in RULES}
    return dict(sorted(parts.items(), key=lambda part: kept.find(part[1])))


def _inherited_preemptible(retry_state: object) -> bool | None:
    """Return True if the first attempt's job was preemptible, or None if it had no rules or no tenant."""
    kept = rules_in(retry_state)
    rules = decode_rules(kept or "")
    return rules.is_preemptible if TenantKey.option in rules.texts else None


def _resolve_preemptible(
    task_name: str, task: Task | None, options: Mapping[str, Any], others: Sequence[bool | None]
) -> bool:
    """Return the first value of ``preemptible`` in *options* of the call and in *others*; False by default.

    Raises OptionError for a task that is acked when it starts, and for a value that is not a bool.
    """
    of_call = options.get("preemptible")
    if of_call is not None:
        check_preemptible(of_call)
    preemptible = next((value for value in (of_call, *others) if value is not None), False)
    if preemptible and task is not None and not task.acks_late:
        raise OptionError(f"call of task {task_name}: {NEEDS_LATE_ACKS}")
    return preemptible


def _key_rule(
    option: str, options: Mapping[str, Any], affinity: Affinity, inherited: Mapping[str, str]
) -> Rule | str | None:
    """Return the key of *option* that the call or its first attempt sets."""
    value = options.get(option)
    given = rule_of_call(option, value)
    if given is not None:
        return rule_of_text(option, given) if isinstance(given, str) else given
    if value is False:
        return ""
    of_call: Rule | None = getattr(affinity, option)
    return inherited.get(option) if of_call is None else of_call


def _single_token_rule(
    rule: type[ValueRule], options: Mapping[str, Any], affinity: Affinity, inherited: Mapping[str, str]
) -> ValueRule | str | None:
    """Return the single-token rule that the call or its first attempt sets."""
    given = rule.of_call(options.get(rule.option))
    if given is not None:
        return given
    of_call: ValueRule | None = getattr(affinity, rule.option)
    return inherited.get(rule.option) if of_call is None else of_call


def _merge_rule(
    task_name: str, merge: Merge | None, options: Mapping[str, Any], inherited: Mapping[str, str]
) -> str | None:
    """Return the merge rule that the call or its first attempt sets. *merge* is the rule of the task.

    Raises OptionError for a ``merge_key=`` if the task does not merge.
    """
    given = merge_key(options.get("merge_key"))
    if given is None or given is False:
        return inherited.get(Merge.option) if given is None else ""
    if merge is None:
        raise OptionError(
            f"merge_key={given!r}: calls of task {task_name} are not merged; its affinity must say merge=Merge(...)"
        )
    return merge.text(str(given))


def rule_by_name(task_name: str, task: Task | None, message: Mapping[str, Any], settings: "Settings") -> str:
    """Return the rules in ``affinity_task_rules`` for a message of another producer, or "".

    Raises OptionError if the message's arguments do not make a valid key.
    """
    named = rules_by_name(task_name, settings)
    if not named.has_rules:
        return ""
    parts = _in_order({option: getattr(named, option) for option in RULES})
    rule = KeyResolver(task_name, _arguments_of(task), parts, False, bool(named.preemptible))
    return rule.text(*arguments_in(task_name, read_body(message)))


@lru_cache(maxsize=10_000)
def warn_of_queue(task_name: str, queue: str) -> None:
    """Log, once per task and queue, that a job's key has no effect on its queue."""
    logger.warning(
        "Jobs of task %r have a key, which has no effect on queue %r: the queue is not scheduled "
        "(affinity_queues), so the jobs run whenever a worker takes them",
        task_name,
        queue,
    )


def _arguments_of(task: Task | None) -> Arguments:
    return _CALL_ARGUMENTS if task is None else arguments_read_by(task.run)


def read_rules(task_name: str, message: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call published by this process, from its encoded message.

    Raises OptionError if the message is not JSON.
    """
    return arguments_in(task_name, read_body(message, MAX_CHARACTERS))


def arguments_in(task_name: str, body: object) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments in the body of a message, in either version of Celery's protocol.

    Raises OptionError if there are none.
    """
    if isinstance(body, Mapping):
        args, kwargs = body.get("args") or (), body.get("kwargs") or {}
    elif isinstance(body, (list, tuple)) and len(body) > 1:
        args, kwargs = body[0], body[1]
    else:
        args = kwargs = None
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, Mapping):
        raise OptionError(
            f"the arguments of a call of task {task_name} cannot be read, so it has no key: {describe_shape(body)}"
        )
    return args, kwargs


#: Options that become rules of a job.
OF_RULES = frozenset(name for name, option in call_options.OPTIONS.items() if option.field == "rules")


class ResolvedOptions(NamedTuple):
    """The final option values of a call. Its methods are passed the call that it belongs to."""

    type: str | None
    #: The plain options (`call_options`).
    plain: Mapping[str, Any]
    #: The call's ``affinity=``.
    call_affinity: Affinity
    #: The task's affinity.
    own: Affinity
    #: The task's ``priority``.
    of_task: int | None
    #: The retry state of the first attempt.
    first_attempt: object

    @classmethod
    def of(cls, call: "PublishCall", message: Message) -> "ResolvedOptions":
        """Return the resolved options of *call*, which publishes *message*. Raises OptionError, SettingError."""
        task = tasks_of(call.app).get(call.task_name)
        properties = message["properties"]
        affinity = properties.get("affinity")
        retry_state = call.former if call.body is not None else option_sources.retry_state_of(task, message)
        option, task_affinity = as_affinity(affinity), affinity_of(task)
        if call.task_name in routing.MAPS:
            task_affinity = _affinity_of_mapped_task(call)
        if call.is_routed:
            type_ = None if affinity == call.routed_by else option.type  # a before_task_publish handler has set it
        else:
            type_ = option.type or _type_without_a_route(call.app, task, call.task_name, properties)
        plain = call_options.resolve_plain_options(
            properties, option, call_options.options_in(retry_state), task_affinity
        )
        return cls(type_, plain, option, task_affinity, getattr(task, "priority", None), retry_state)

    def priority(self, call: "PublishCall", message: Message) -> int:
        """Return the priority in the order of the app, from 0 to 10.

        The sources in order: the call's ``affinity=``, the call's ``priority=``, the task's ``affinity=``, the task's
        ``priority``. Celery passes on one value for both priorities. If it equals the task's, it is treated as the
        task's.
        """
        in_message = message["properties"].get("priority")  # set by kombu
        # A different priority than at the beginning was set by a handler of before_task_publish.
        celerys = call.priority if in_message == (call.priority or 0) else in_message
        own_priority = self.own.priority
        from_task = (own_priority, celerys) if celerys == self.of_task else (celerys, own_priority)
        given = whole_priority(
            next((value for value in (self.call_affinity.priority, *from_task) if value is not None), None) or 0
        )
        counted = clamp_priority(given)
        if counted != given:
            option_checks.warn_out_of_range(call.app, call.task_name, message["headers"], given, counted)
        return counted

    def job_rule(self, call: "PublishCall", message: Message) -> KeyResolver | None:
        """Return the resolver for the job's rules, or None if no source can set rules, as for most calls."""
        options, settings = message["properties"], settings_of(call.app)
        parent = option_sources.tenant_of_run() if settings.inherit_tenant else ""
        has_rules = (
            self.call_affinity.has_rules or self.own.has_rules or self.first_attempt or settings.task_rules or parent
        )
        if not has_rules and options.keys().isdisjoint(OF_RULES):
            return None
        return resolve_keys(
            call.task_name,
            tasks_of(call.app).get(call.task_name),
            options,
            affinity=self.call_affinity,
            retry_state=self.first_attempt,
            task_affinity=self.own,
            parent=parent,
            settings=settings,
        )


def _affinity_of_mapped_task(call: "PublishCall") -> Affinity:
    """Return the affinity of the task that a ``map``, ``starmap`` or ``chunks`` runs, without its rules.

    Rules need the arguments of one call, and a map has the arguments of many calls.
    """
    body = call.called_with
    name = routing.mapped_type(body[1] if isinstance(body, tuple) and len(body) > 1 else None)
    task = tasks_of(call.app).get(name) if name else None
    affinity = affinity_of(task)
    return Affinity(affinity.type, affinity.priority, affinity.on_demand)


def _type_without_a_route(app: Celery, task: Any, name: str, properties: Mapping[str, Any]) -> str | None:
    """Return the type of a task that is published with kombu alone, or None if the call has another destination."""
    type_ = routing.type_of_task(app, task, name)
    place = properties.get("delivery_info")
    if type_ is None or not isinstance(place, Mapping):
        return type_
    is_default = routing.is_default_queue(app, place.get("exchange"), place.get("routing_key"))
    return type_ if is_default else None
