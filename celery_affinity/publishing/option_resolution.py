"""Which keys the job of a call has: of exclusion, of a rate, of merging, of a tenant; and its hint of locality. Of each
the first that says something counts.

1. the call: its ``exclusive=``, ``rate=``, ``tenant=``, ``locality=``, or else those in its ``affinity=``; its
   ``merge_key=``;
2. what the first try had, for a retry;
3. the task's ``affinity=``;
4. of a tenant: the task that publishes the call while it runs (``affinity_inherit_tenant``);
5. a name pattern in ``affinity_task_rules``.

With a tenant, the rules also say whether the job may be stopped for another tenant's: the call does, or else the first
try, the task, or its name. False in the call, for a kind of key, takes that of the kind away, whoever says it. A text
as ``exclusive=``, ``tenant=`` or ``merge_key=`` of a call is the key itself. Any other key is a template, or made by a
function: the call's arguments fill it, by the names that the task has for them; where the task is not at hand, keyword
arguments alone have names. Callbacks and the later steps of a chain inherit the tenant alone (`passed_on`).

What a call asks for: its type, its urgency, and the rules of its job. Each comes from the first that says something.

A call's options count more than its task's, and those of a retry's first try lie between the two. Celery has merged the
options of call and task by then; `places` says how the two are told apart.
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
    Exclusive,
    Rate,
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
from ..schema.rules_codec import as_preemptible, is_preemptible, join_rules, split_rules, texts_of_keys, value_in
from ..schema.untrusted import describe_shape
from . import option_checks, option_sources, routing
from .app_config import rules_by_name, settings_of, tasks_of
from .message import Message
from .message_body import MOST_CHARACTERS, decode_body
from .option_sources import rules_in

if TYPE_CHECKING:
    from ..settings.table import Settings
    from .publish_call import PublishCall

logger = limited_logger(__name__)
_OF_CALL = CallArguments()
#: Options whose parts of a job's rules come before keys, in their order.
_BEFORE_KEYS = (Merge.option, *(rule.option for rule in WORDS))
#: How many calls are merged of a task that is not at hand. What a run makes of them is the worker's to know.
_BOUNDS = Merge("any", keep="first")


class KeyResolver(NamedTuple):
    """What makes the rules of a call's job out of the call's arguments.

    *parts*: those of the rules, in their order; a text is the part itself, "" for none. *said*: whether the
    call, or its first try, has said so: a retry keeps that, even if it is none. *preemptible*: whether the job may be
    stopped, if it has a tenant.
    """

    task_name: str
    arguments: Arguments
    parts: tuple[Rule | Merge | ValueRule | str, ...]
    said: bool
    preemptible: bool = False

    @property
    def is_fixed(self) -> bool:
        """Whether the arguments of a call change nothing."""
        return all(isinstance(part, str) for part in self.parts)

    def text(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the rules of the job of a call with these arguments, "" for none.

        Raises OptionError if they make no key, and whatever a function that makes keys raises.
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
    asked: Affinity,
    left: object,
    own: Affinity,
    parent: str,
    settings: "Settings",
) -> KeyResolver | None:
    """Return what makes the rules of a call with *options*; None if nobody says anything.

    *asked*: the call's ``affinity=``. *left*: what the first try has left. *own*: what the task asks for. *parent*: the
    tenant that the call inherits, "" for none. Raises OptionError for options that are not accepted.
    """
    if asked.merge is not None:
        raise only_tasks_merge(asked.merge)
    named, kept = rules_by_name(task_name, settings), _kept(left)
    others = (asked.preemptible, _kept_preemptible(left), own.preemptible, named.preemptible)
    preemptible = _may_be_stopped(task_name, task, options, others)
    merge = own.merge or named.merge or (_BOUNDS if task is None else None)
    said: dict[str, Rule | Merge | ValueRule | str | None] = {Merge.option: _merging(task_name, merge, options, kept)}
    said |= {word.option: _word(word, options, asked, kept) for word in WORDS}
    said |= {option: _key_rule(option, options, asked, kept) for option in (*KEYS, TenantKey.option)}
    order = [*kept] or RULES
    parts = {option: getattr(own, option) or getattr(named, option) for option in order}
    if parent and own.tenant is None:
        parts[TenantKey.option] = check_tenant(parent)
    parts |= {option: part for option, part in said.items() if part is not None}
    if not any(part is not None for part in parts.values()):
        return None
    says = any(part is not None for part in said.values())
    return KeyResolver(task_name, _arguments_of(task), _in_order(parts), says, preemptible)


def _in_order(parts: Mapping[str, Rule | Merge | ValueRule | str | None]) -> tuple[Rule | Merge | ValueRule | str, ...]:
    """Return *parts* of rules in the order in which a job has them: how it merges, its hint, the narrower key, the
    other key, and the tenant: a job that waits for its key holds up no other jobs of its tenant.

    A key that is kept for retries goes before the rate: at the rate, another job that waits for the key would stand
    before the retry.
    """
    keys = [part or "" for option, part in parts.items() if option in KEYS and not isinstance(part, Merge | ValueRule)]
    before = (parts[name] or "" for name in _BEFORE_KEYS)
    keys.sort(key=lambda rule: (keeps_order(rule), specificity(rule)), reverse=True)
    return *before, *keys, parts[TenantKey.option] or ""


def _kept(left: object) -> dict[str, str]:
    """Return the parts of the rules that the first try has left, in their order; {} if it has left nothing."""
    kept = rules_in(left)
    if kept is None:
        return {}
    merging, keys = split_rules(kept)
    rate, exclusive, of_tenant = texts_of_keys(as_preemptible(keys, False))
    found = {Merge.option: merging}
    for rule in WORDS:
        value = value_in(kept, rule.word)
        found[rule.option] = f"{rule.word}={value}" if value else ""
    found |= {Rate.option: rate, Exclusive.option: exclusive, TenantKey.option: of_tenant}
    return dict(sorted(found.items(), key=lambda part: kept.find(part[1])))


def _kept_preemptible(left: object) -> bool | None:
    """Return whether the job of the first try may be stopped; None if it has left no rules, or none of a tenant."""
    kept = rules_in(left)
    return is_preemptible(kept) if kept and texts_of_keys(split_rules(kept)[1])[2] else None


def _may_be_stopped(
    task_name: str, task: Task | None, options: Mapping[str, Any], others: Sequence[bool | None]
) -> bool:
    """Return whether a call with *options* says, or else the first of *others*, that its job may be stopped.

    Raises OptionError for a task that is acked when it starts, and for a value that is no bool.
    """
    of_call = options.get("preemptible")
    if of_call is not None:
        check_preemptible(of_call)
    found = next((each for each in (of_call, *others) if each is not None), False)
    if found and task is not None and not task.acks_late:
        raise OptionError(f"call of task {task_name}: {NEEDS_LATE_ACKS}")
    return found


def _key_rule(option: str, options: Mapping[str, Any], asked: Affinity, kept: Mapping[str, str]) -> Rule | str | None:
    """Return what the call says of the key of *option*, or else its first try."""
    value = options.get(option)
    given = rule_of_call(option, value)
    if given is not None:
        return rule_of_text(option, given) if isinstance(given, str) else given
    if value is False:
        return ""
    of_call: Rule | None = getattr(asked, option)
    return kept.get(option) if of_call is None else of_call


def _word(
    rule: type[ValueRule], options: Mapping[str, Any], asked: Affinity, kept: Mapping[str, str]
) -> ValueRule | str | None:
    """Return what the call says of a rule of one word, or else its first try."""
    given = rule.of_call(options.get(rule.option))
    if given is not None:
        return given
    of_call: ValueRule | None = getattr(asked, rule.option)
    return kept.get(rule.option) if of_call is None else of_call


def _merging(task_name: str, merge: Merge | None, options: Mapping[str, Any], kept: Mapping[str, str]) -> str | None:
    """Return what the call says of merging, or else its first try. *merge*: as its task does.

    Raises OptionError for a key of a call whose task does not merge.
    """
    given = merge_key(options.get("merge_key"))
    if given is None or given is False:
        return kept.get(Merge.option) if given is None else ""
    if merge is None:
        raise OptionError(
            f"merge_key={given!r}: calls of task {task_name} are not merged; its affinity must say merge=Merge(...)"
        )
    return merge.text(str(given))


def rule_by_name(task_name: str, task: Task | None, message: Mapping[str, Any], settings: "Settings") -> str:
    """Return the rules that ``affinity_task_rules`` has for a message of another producer, "" for none.

    Raises OptionError if the arguments in the message make no key.
    """
    named = rules_by_name(task_name, settings)
    if not named.has_rules:
        return ""
    parts = _in_order({option: getattr(named, option) for option in RULES})
    rule = KeyResolver(task_name, _arguments_of(task), parts, False, bool(named.preemptible))
    return rule.text(*arguments_in(task_name, decode_body(message)))


@lru_cache(maxsize=10_000)
def warn_of_queue(task_name: str, queue: str) -> None:
    """Log, once for each task and queue, that a job has no key where it goes."""
    logger.warning(
        "Jobs of task %r have a key, which has no effect on queue %r: the queue is not scheduled "
        "(affinity_queues), so the jobs run whenever a worker takes them",
        task_name,
        queue,
    )


def _arguments_of(task: Task | None) -> Arguments:
    return _OF_CALL if task is None else arguments_read_by(task.run)


def read_rules(task_name: str, message: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call that this process publishes, from its encoded message.

    Raises OptionError if it is not JSON.
    """
    return arguments_in(task_name, decode_body(message, MOST_CHARACTERS))


def arguments_in(task_name: str, body: object) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments that a message's body has, in either version of Celery's protocol.

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


#: Options that make the rules of a job.
OF_RULES = frozenset(name for name, option in call_options.OPTIONS.items() if option.field == "rules")


class ResolvedOptions(NamedTuple):
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
    def of(cls, call: "PublishCall", message: Message) -> "ResolvedOptions":
        """Return what *call*, which publishes *message*, asks for. Raises OptionError, SettingError."""
        task = tasks_of(call.app).get(call.task_name)
        properties = message["properties"]
        affinity = properties.get("affinity")
        left = call.former if call.body is not None else option_sources.retry_state_of(task, message)
        option, own = as_affinity(affinity), affinity_of(task)
        if call.task_name in routing.MAPS:
            own = _of_mapped_task(call)
        if call.is_routed:
            type_ = None if affinity == call.routed_by else option.type  # a before_task_publish handler has set it
        else:
            type_ = option.type or _type_without_a_route(call.app, task, call.task_name, properties)
        plain = call_options.resolve_plain_options(properties, option, call_options.options_in(left), own)
        return cls(type_, plain, option, own, getattr(task, "priority", None), left)

    def priority(self, call: "PublishCall", message: Message) -> int:
        """Return the priority as the app counts it, from 0 to 10.

        The first that is given counts: the call's ``affinity=``, the call's ``priority=``, the task's ``affinity=``,
        the task's ``priority``. Celery hands on one value for both priorities: one that equals the task's counts as the
        task's.
        """
        in_message = message["properties"].get("priority")  # set by kombu
        # Another priority than at the beginning: a handler of before_task_publish has set it.
        celerys = call.priority if in_message == (call.priority or 0) else in_message
        ours = self.own.priority
        own = (ours, celerys) if celerys == self.of_task else (celerys, ours)
        given = whole_priority(next((each for each in (self.asked.priority, *own) if each is not None), None) or 0)
        counted = clamp_priority(given)
        if counted != given:
            option_checks.warn_out_of_range(call.app, call.task_name, message["headers"], given, counted)
        return counted

    def job_rule(self, call: "PublishCall", message: Message) -> KeyResolver | None:
        """Return what makes the rules of the job; None if nothing could make any, as for most calls."""
        options, settings = message["properties"], settings_of(call.app)
        parent = option_sources.tenant_of_run() if settings.inherit_tenant else ""
        said = self.asked.has_rules or self.own.has_rules or self.first_try or settings.task_rules or parent
        if not said and options.keys().isdisjoint(OF_RULES):
            return None
        return resolve_keys(
            call.task_name,
            tasks_of(call.app).get(call.task_name),
            options,
            asked=self.asked,
            left=self.first_try,
            own=self.own,
            parent=parent,
            settings=settings,
        )


def _of_mapped_task(call: "PublishCall") -> Affinity:
    """Return the affinity of the task that a ``map``, ``starmap`` or ``chunks`` runs, without its rules.

    Rules are filled with the arguments of one call, and a map has the arguments of many.
    """
    body = call.called_with
    name = routing.mapped_type(body[1] if isinstance(body, tuple) and len(body) > 1 else None)
    task = tasks_of(call.app).get(name) if name else None
    asked = affinity_of(task)
    return Affinity(asked.type, asked.priority, asked.on_demand)


def _type_without_a_route(app: Celery, task: Any, name: str, properties: Mapping[str, Any]) -> str | None:
    """Return the type of a task that is published with kombu alone; None if the call names a place of its own."""
    type_ = routing.type_of_task(app, task, name)
    place = properties.get("delivery_info")
    if type_ is None or not isinstance(place, Mapping):
        return type_
    is_default = routing.is_default_queue(app, place.get("exchange"), place.get("routing_key"))
    return type_ if is_default else None
