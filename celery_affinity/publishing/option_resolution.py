"""Resolution of a call's options: its type, its urgency, and the rules of its job.

The table `call_options.OPTIONS` defines which source of an option takes precedence. `ResolvedOptions` collects the
sources of one call. Celery has already merged the options of call and task; `option_sources` distinguishes them.

A job has rules if a source sets a key (exclusive, rate, merge key, tenant) or a locality hint. With a tenant, the rules
also state if the job is preemptible. False in the call removes that kind of key, regardless of its source. A str as
``exclusive=``, ``tenant=`` or ``merge_key=`` of a call is a literal key. Any other key is a template or a function of
the call's arguments, named by the task's parameters; if the task is not available, only keyword arguments have names.
Callbacks and later steps of a chain inherit only the tenant (`canvas`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from celery import Celery
from celery.app.task import Task

from ..errors import OptionError, refuse
from ..log_limit import limited_logger
from ..options.affinity import (
    NEEDS_LATE_ACKS,
    NOTHING,
    Affinity,
    affinity_of,
    as_affinity,
    clamp_priority,
    only_tasks_merge,
)
from ..options.call_options import (
    KEYS,
    OF_CALL,
    OPTIONS,
    RULE_OPTIONS,
    Sources,
    options_in,
    resolve,
    resolve_plain_options,
    resolve_source,
)
from ..options.key_templates import Arguments, CallArguments, arguments_read_by, fill_template
from ..options.keys import Locality, Rule, Size, TenantKey, as_size, keeps_order, specificity
from ..options.merge import Merge
from ..schema.rules_codec import as_preemptible, decode_rules, join_rules
from ..schema.untrusted import describe_shape
from . import option_checks, option_sources, routing
from .app_config import rules_by_name, settings_of, tasks_of
from .message import Message
from .message_body import read_body
from .option_sources import rules_in

if TYPE_CHECKING:
    from ..settings.table import Settings
    from .publish_call import PublishCall

logger = limited_logger(__name__)
_CALL_ARGUMENTS = CallArguments()
#: Options whose rules precede the keys in a job's rules, in order.
_BEFORE_KEYS = ("merge_key", Locality.option)
#: Limits for merged calls if the task is not available. Only the worker needs the other fields.
_DEFAULT_MERGE = Merge("any", keep="first")


class KeyResolver(NamedTuple):
    """Makes the rules of a call's job from the call's arguments."""

    task_name: str
    arguments: Arguments
    #: Parts of the rules, in order. A str is the part itself, "" for none.
    parts: tuple[Rule | Merge | Locality | str, ...]
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

    def _part(self, rule: Rule | Merge | Locality | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        if isinstance(rule, str):
            return rule
        if isinstance(rule.key, str):
            key = fill_template(rule.option, rule.key, self.task_name, self.arguments, args, kwargs)
        else:
            key = rule.key(tuple(args), dict(kwargs))
            if key is not None and not isinstance(key, str):
                raise refuse(f"key of {rule.option}, as its function returns it,", "a text or None", key)
        return "" if key is None else rule.text(key)


def resolve_keys(task_name: str, task: Task | None, sources: Sources) -> KeyResolver | None:
    """Return the resolver for the rules of a call, or None if no source sets a rule.

    *task* is None if the app lacks it. Raises OptionError for invalid options, and for a preemptible task that is acked
    when it starts.
    """
    if sources.call_affinity.merge is not None:
        raise only_tasks_merge(sources.call_affinity.merge)
    preemptible = bool(resolve("preemptible", sources))
    if preemptible and task is not None and not task.acks_late:
        raise OptionError(f"call of task {task_name}: {NEEDS_LATE_ACKS}")
    return _key_resolver(task_name, task, sources, preemptible)


def _key_resolver(task_name: str, task: Task | None, sources: Sources, preemptible: bool) -> KeyResolver | None:
    parts: dict[str, Rule | Merge | Locality | str | None] = {}
    is_explicit = False
    for name in [name for name in sources.first_attempt if name in RULE_OPTIONS] or RULE_OPTIONS:
        source, part = resolve_source(name, sources)
        if name == "merge_key" and source == "options" and part:
            part = _merge_rule(task_name, task, sources, part)
        parts[name] = part
        is_explicit = is_explicit or source in OF_CALL
    if all(part is None for part in parts.values()):
        return None
    arguments = _CALL_ARGUMENTS if task is None else arguments_read_by(task.run)
    return KeyResolver(task_name, arguments, _in_order(parts), is_explicit, preemptible)


def _merge_rule(task_name: str, task: Task | None, sources: Sources, key: str) -> str:
    """Return the merge rule of a call with ``merge_key=``. Raises OptionError if the task does not merge."""
    merge = resolve("merge_key", Sources(task_affinity=sources.task_affinity, named=sources.named))
    merge = merge or (_DEFAULT_MERGE if task is None else None)
    if merge is None:
        raise OptionError(
            f"merge_key={key!r}: calls of task {task_name} are not merged; its affinity must say merge=Merge(...)"
        )
    return str(merge.text(key))


def _in_order(parts: Mapping[str, Rule | Merge | Locality | str | None]) -> tuple[Rule | Merge | Locality | str, ...]:
    """Return *parts* of rules in the order of a job's rules: merge rule, hint, narrower key, other key, tenant.

    The tenant is last, so that a job waiting for its key blocks no other jobs of its tenant. A key that is reserved for
    retries precedes the rate: otherwise another job waiting for the key could pass the rate before the retry.
    """
    keys = [part or "" for name, part in parts.items() if name in KEYS and not isinstance(part, Merge | Locality)]
    before = (parts[name] or "" for name in _BEFORE_KEYS)
    keys.sort(key=lambda rule: (keeps_order(rule), specificity(rule)), reverse=True)
    return *before, *keys, parts[TenantKey.option] or ""


def _inherited_by_retry(retry_state: object) -> dict[str, Any]:
    """Return the values by option that a retry inherits: plain options, and rules in the order of the first attempt.

    A rule that the first attempt did not have is "", so that the retry does not have it either.
    """
    inherited, kept = options_in(retry_state), rules_in(retry_state)
    if kept is None:
        return inherited
    rules = decode_rules(as_preemptible(kept, False))
    parts = {name: rules.texts.get(OPTIONS[name].of_affinity or name, "") for name in RULE_OPTIONS}
    inherited |= dict(sorted(parts.items(), key=lambda part: kept.find(part[1])))
    return {**inherited, "preemptible": decode_rules(kept).is_preemptible} if parts[TenantKey.option] else inherited


def rule_by_name(task_name: str, task: Task | None, message: Mapping[str, Any], settings: "Settings") -> str:
    """Return the rules in ``affinity_task_rules`` for a message of another producer, or "".

    Raises OptionError if the message's arguments do not make a valid key.
    """
    named = rules_by_name(task_name, settings)
    rule = _key_resolver(task_name, task, Sources(named=named), bool(named.preemptible)) if named.has_rules else None
    return "" if rule is None else rule.text(*arguments_in(task_name, read_body(message)))


_SIZES: WeakKeyDictionary[Task, Size | None] = WeakKeyDictionary()


def size_of_task(task: Task) -> Size | None:
    """Return the option ``size`` of *task*, which its route, the task or its name sets. Raises OptionError."""
    if task not in _SIZES:
        _SIZES[task] = None  # an invalid option raises an error once
        sources = option_checks.sources_without_call(task.app, task.name, task, settings_of(task.app))
        affinities = sources.call_affinity, sources.task_affinity, sources.named
        _SIZES[task] = next((as_size(affinity.size) for affinity in affinities if affinity.size), None)
    return _SIZES[task]


def size_of_call(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    """Return the size of a call of *task*, or None if it is unknown. Errors are only logged."""
    return size_of_body(task.name, task, NOTHING, lambda: (args, kwargs))


def size_of_body(task_name: str, task: Task | None, named: Affinity, read_body: Callable[[], object]) -> float | None:
    """Return the size of a call in the body of its message, or None if it is unknown. Errors are only logged.

    Args:
        task_name: the name of the task.
        task: the task, or None if the app lacks it.
        named: the options by the task's name, which apply without the task.
        read_body: returns the body.
    """
    try:
        size = as_size(named.size) if task is None else size_of_task(task)
        if size is None:
            return None
        arguments = _CALL_ARGUMENTS if task is None else arguments_read_by(task.run)
        return size.of_call(task_name, arguments, *arguments_in(task_name, read_body()))
    except Exception as exc:  # also of the user's function
        logger.warning("The size of a call of task %s is unknown: %.300r", task_name, exc)
        return None


@lru_cache(maxsize=10_000)
def warn_of_queue(task_name: str, queue: str) -> None:
    """Log, once per task and queue, that a job's key has no effect on its queue."""
    logger.warning(
        "Jobs of task %r have a key, which has no effect on queue %r: the queue is not scheduled "
        "(affinity_queues), so the jobs run whenever a worker takes them",
        task_name,
        queue,
    )


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
OF_RULES = frozenset(name for name, option in OPTIONS.items() if option.field == "rules")


class ResolvedOptions(NamedTuple):
    """The options of a call: the final values of its type and its plain options, and the sources of all others."""

    type: str | None
    plain: Mapping[str, Any]
    sources: Sources
    #: The retry state of the first attempt.
    retry_state: object

    @classmethod
    def of(cls, call: "PublishCall", message: Message) -> "ResolvedOptions":
        """Return the resolved options of *call*, which publishes *message*. Raises OptionError, SettingError."""
        task, settings = tasks_of(call.app).get(call.task_name), settings_of(call.app)
        properties = message["properties"]
        retry_state = call.former if call.body is not None else option_sources.retry_state_of(task, message)
        affinity = properties.get("affinity")
        in_message, of_task = properties.get("priority"), getattr(task, "priority", None)  # the first is set by kombu
        # A different priority than at the beginning was set by a handler of before_task_publish. Celery passes on one
        # value for the priorities of call and task. If it equals the task's, it is treated as the task's.
        priority = call.priority if in_message == (call.priority or 0) else in_message
        priorities: dict[str, object] = {"priority": priority if priority is None else priority or 0}
        sources = Sources(
            {**properties, "priority": None} if priority == of_task else {**properties, **priorities},
            as_affinity(affinity),
            {} if retry_state is None else _inherited_by_retry(retry_state),
            _affinity_of_mapped_task(call) if call.task_name in routing.MAPS else affinity_of(task),
            priorities if priority == of_task else {},
            option_sources.tenant_of_run() if settings.inherit_tenant else "",
            rules_by_name(call.task_name, settings),
        )
        if call.is_routed:
            type_ = None if affinity == call.routed_by else sources.call_affinity.type  # a handler has set it
        else:
            type_ = sources.call_affinity.type or _type_without_a_route(call.app, task, call.task_name, properties)
        return cls(type_, resolve_plain_options(sources), sources, retry_state)

    def priority(self, call: "PublishCall", message: Message) -> int:
        """Return the priority in the order of the app, from 0 to 10."""
        given = resolve("priority", self.sources) or 0
        counted = clamp_priority(given)
        if counted != given:
            option_checks.warn_out_of_range(call.app, call.task_name, message["headers"], given, counted)
        return counted

    def job_rule(self, call: "PublishCall") -> KeyResolver | None:
        """Return the resolver for the job's rules, or None if no source can set rules, as for most calls."""
        sources = self.sources
        affinities = sources.call_affinity, sources.task_affinity, sources.named
        has_rules = sources.first_attempt or sources.parent or any(affinity.has_rules for affinity in affinities)
        if not has_rules and OF_RULES.isdisjoint(sources.options):
            return None
        return resolve_keys(call.task_name, tasks_of(call.app).get(call.task_name), sources)


def _affinity_of_mapped_task(call: "PublishCall") -> Affinity:
    """Return the affinity of the task that a ``map``, ``starmap`` or ``chunks`` runs, without its rules.

    Rules need the arguments of one call, and a map has the arguments of many calls.
    """
    body = call.called_with
    name = routing.mapped_type(body[1] if isinstance(body, tuple) and len(body) > 1 else None)
    task = tasks_of(call.app).get(name) if name else None
    affinity = affinity_of(task)
    return Affinity(affinity.type, affinity.priority, affinity.on_demand, start_within=affinity.start_within)


def _type_without_a_route(app: Celery, task: Any, name: str, properties: Mapping[str, Any]) -> str | None:
    """Return the type of a task that is published with kombu alone, or None if the call has another destination."""
    type_ = routing.type_of_task(app, task, name)
    place = properties.get("delivery_info")
    if type_ is None or not isinstance(place, Mapping):
        return type_
    is_default = routing.is_default_queue(app, place.get("exchange"), place.get("routing_key"))
    return type_ if is_default else None
