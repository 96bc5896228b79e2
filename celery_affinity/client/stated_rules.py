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
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.app.task import Task

from ..errors import OptionError, refuse
from ..log_limit import limited_logger
from ..rules.affinity import NEEDS_LATE_ACKS, RULES, WORDS, Affinity, check_preemptible, only_tasks_merge
from ..rules.call_options import KEYS
from ..rules.keyed.key_rules import (
    Exclusive,
    Rate,
    Rule,
    TenantKey,
    keeps_order,
    narrowness,
    rule_of_call,
    rule_of_text,
    tenant,
)
from ..rules.keyed.template import Arguments, OfCall, filled, taken_by
from ..rules.merging import Merge, merge_key
from ..rules.rule_texts import as_preemptible, is_preemptible, joined, parts_of, texts_of_keys, word_in
from ..rules.untrusted import shape_of
from ..rules.word import Word
from .bodies import MOST_CHARACTERS, decoded
from .first_try import rules_in
from .of_app import rules_by_name

if TYPE_CHECKING:
    from ..rules.settings import Settings

logger = limited_logger(__name__)

_OF_CALL = OfCall()

#: Options whose parts of a job's rules come before keys, in their order.
_BEFORE_KEYS = (Merge.option, *(rule.option for rule in WORDS))

#: How many calls are merged of a task that is not at hand. What a run makes of them is the worker's to know.
_BOUNDS = Merge("any", keep="first")


class RuleMaker(NamedTuple):
    """What makes the rules of a call's job out of the call's arguments.

    *parts*: those of the rules, in their order; a text is the part itself, "" for none. *said*: whether the
    call, or its first try, has said so: a retry keeps that, even if it is none. *preemptible*: whether the job may be
    stopped, if it has a tenant.
    """

    task_name: str
    arguments: Arguments
    parts: tuple[Rule | Merge | Word | str, ...]
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
        text = joined(*(self._part(part, args, kwargs) for part in self.parts))
        return as_preemptible(text, self.preemptible) if self.preemptible else text

    def _part(self, rule: Rule | Merge | Word | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        if isinstance(rule, str):
            return rule
        if isinstance(rule.key, str):
            key = filled(rule.option, rule.key, self.task_name, self.arguments, args, kwargs)
        else:
            key = rule.key(tuple(args), dict(kwargs))
            if key is not None and not isinstance(key, str):
                raise refuse(f"key of {rule.option}, as its function returns it,", "a text or None", key)
        return "" if key is None else rule.text(key)


def decide(
    task_name: str,
    task: Task | None,
    options: Mapping[str, Any],
    *,
    asked: Affinity,
    left: object,
    own: Affinity,
    parent: str,
    settings: "Settings",
) -> RuleMaker | None:
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
    said: dict[str, Rule | Merge | Word | str | None] = {Merge.option: _merging(task_name, merge, options, kept)}
    said |= {word.option: _word(word, options, asked, kept) for word in WORDS}
    said |= {option: _key_rule(option, options, asked, kept) for option in (*KEYS, TenantKey.option)}
    order = [*kept] or RULES
    parts = {option: getattr(own, option) or getattr(named, option) for option in order}
    if parent and own.tenant is None:
        parts[TenantKey.option] = tenant(parent)
    parts |= {option: part for option, part in said.items() if part is not None}
    if not any(part is not None for part in parts.values()):
        return None
    says = any(part is not None for part in said.values())
    return RuleMaker(task_name, _arguments_of(task), _in_order(parts), says, preemptible)


def _in_order(parts: Mapping[str, Rule | Merge | Word | str | None]) -> tuple[Rule | Merge | Word | str, ...]:
    """Return *parts* of rules in the order in which a job has them: how it merges, its hint, the narrower key, the
    other key, and the tenant: a job that waits for its key holds up no other jobs of its tenant.

    A key that is kept for retries goes before the rate: at the rate, another job that waits for the key would stand
    before the retry.
    """
    keys = [part or "" for option, part in parts.items() if option in KEYS and not isinstance(part, Merge | Word)]
    before = (parts[name] or "" for name in _BEFORE_KEYS)
    keys.sort(key=lambda rule: (keeps_order(rule), narrowness(rule)), reverse=True)
    return *before, *keys, parts[TenantKey.option] or ""


def _kept(left: object) -> dict[str, str]:
    """Return the parts of the rules that the first try has left, in their order; {} if it has left nothing."""
    kept = rules_in(left)
    if kept is None:
        return {}
    merging, keys = parts_of(kept)
    rate, exclusive, of_tenant = texts_of_keys(as_preemptible(keys, False))
    found = {Merge.option: merging}
    for rule in WORDS:
        value = word_in(kept, rule.word)
        found[rule.option] = f"{rule.word}={value}" if value else ""
    found |= {Rate.option: rate, Exclusive.option: exclusive, TenantKey.option: of_tenant}
    return dict(sorted(found.items(), key=lambda part: kept.find(part[1])))


def _kept_preemptible(left: object) -> bool | None:
    """Return whether the job of the first try may be stopped; None if it has left no rules, or none of a tenant."""
    kept = rules_in(left)
    return is_preemptible(kept) if kept and texts_of_keys(parts_of(kept)[1])[2] else None


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


def _word(rule: type[Word], options: Mapping[str, Any], asked: Affinity, kept: Mapping[str, str]) -> Word | str | None:
    """Return what the call says of a rule of one word, or else its first try."""
    given = rule.of_call(options.get(rule.option))
    if given is not None:
        return given
    of_call: Word | None = getattr(asked, rule.option)
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


def by_name(task_name: str, task: Task | None, message: Mapping[str, Any], settings: "Settings") -> str:
    """Return the rules that ``affinity_task_rules`` has for a message of another producer, "" for none.

    Raises OptionError if the arguments in the message make no key.
    """
    named = rules_by_name(task_name, settings)
    if not named.has_rules:
        return ""
    parts = _in_order({option: getattr(named, option) for option in RULES})
    rule = RuleMaker(task_name, _arguments_of(task), parts, False, bool(named.preemptible))
    return rule.text(*arguments_in(task_name, decoded(message)))


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
    return _OF_CALL if task is None else taken_by(task.run)


def read(task_name: str, message: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call that this process publishes, from its encoded message.

    Raises OptionError if it is not JSON.
    """
    return arguments_in(task_name, decoded(message, MOST_CHARACTERS))


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
            f"the arguments of a call of task {task_name} cannot be read, so it has no key: {shape_of(body)}"
        )
    return args, kwargs
