"""Which key, and which merge key, the job of a call has: of each, the first of these that says something counts.

1. the call: its ``exclusive=`` or ``rate=``, or else those in its ``affinity=``; its ``merge_key=``;
2. what the first try had, for a retry;
3. the task's ``affinity=``;
4. a name pattern in ``affinity_task_rules``.

False in the call, for a kind of rule, takes one of that kind away, whoever says it. A text as ``exclusive=`` or
``merge_key=`` of a call is the key itself. Any other key is a template, or made by a function: the call's arguments
fill it, by the names that the task has for them; where the task is not at hand, keyword arguments alone have names.
Nothing inherits a key: no callback, no later step of a chain.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.app.task import Task

from ..errors import OptionError, refuse
from ..rules.affinity import Affinity, only_tasks_merge
from ..rules.call_options import KEYS
from ..rules.keyed.key_rules import Rule, literal, option_of, rule_of_call
from ..rules.keyed.template import Arguments, OfCall, filled, taken_by
from ..rules.merging import Merge, merge_key
from ..rules.rule_texts import joined, parts_of
from . import revokes
from .first_try import rules_in
from .of_app import rules_by_name

if TYPE_CHECKING:
    from ..rules.settings import Settings

logger = logging.getLogger(__name__)

_OF_CALL = OfCall()

#: How many calls are merged of a task that is not at hand. What a run makes of them is the worker's to know.
_BOUNDS = Merge("any", keep="first")


class RuleMaker(NamedTuple):
    """What makes the rules of a call's job out of the call's arguments.

    *rule*, *merge*: a text is that part of the rules itself, "" for none. *said*: whether the call, or its first try,
    has said so: a retry keeps that, even if it is none.
    """

    task_name: str
    arguments: Arguments
    rule: Rule | str
    said: bool
    merge: Merge | str = ""

    @property
    def is_fixed(self) -> bool:
        """Whether the arguments of a call change nothing."""
        return isinstance(self.rule, str) and isinstance(self.merge, str)

    def text(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the rules of the job of a call with these arguments, "" for none.

        Raises OptionError if they make no key, and whatever a function that makes keys raises.
        """
        return joined(self._part(self.merge, args, kwargs), self._part(self.rule, args, kwargs))

    def _part(self, rule: Rule | Merge | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
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
    settings: "Settings",
) -> RuleMaker | None:
    """Return what makes the rules of a call with *options*; None if nobody says anything.

    *asked*: the call's ``affinity=``. *left*: what the first try has left. *own*: what the task asks for. Raises
    OptionError for options that are not accepted.
    """
    if asked.merge is not None:
        raise only_tasks_merge(asked.merge)
    kept = rules_in(left)
    kept_merging, kept_key = (None, None) if kept is None else parts_of(kept)
    named = rules_by_name(task_name, settings)
    rule, says_key = _key_rule(options, asked, kept_key), True
    if rule is None:
        rule, says_key = own.rule or named.rule, False
    if rule and options.get(option_of(rule)) is False:
        rule, says_key = "", True
    merging = own.merge or named.merge
    merge: Merge | str | None = _merging(
        task_name, merging or (_BOUNDS if task is None else None), options, kept_merging
    )
    says_merging = merge is not None
    if merge is None:
        merge = merging
    if rule is None and merge is None:
        return None
    return RuleMaker(task_name, _arguments_of(task), rule or "", says_key or says_merging, merge or "")


def _key_rule(options: Mapping[str, Any], asked: Affinity, kept: str | None) -> Rule | str | None:
    """Return what the call says of its key, or else its first try."""
    given = checked(options)
    if given is not None:
        return literal(given) if isinstance(given, str) else given
    return kept if asked.rule is None else asked.rule


def _merging(task_name: str, merge: Merge | None, options: Mapping[str, Any], kept: str | None) -> str | None:
    """Return what the call says of merging, or else its first try. *merge*: as its task does.

    Raises OptionError for a key of a call whose task does not merge.
    """
    given = merge_key(options.get("merge_key"))
    if given is None or given is False:
        return kept if given is None else ""
    if merge is None:
        raise OptionError(
            f"merge_key={given!r}: calls of task {task_name} are not merged; its affinity must say merge=Merge(...)"
        )
    return merge.text(str(given))


def checked(options: Mapping[str, Any]) -> Rule | str | None:
    """Return what *options* of a call say, a rule or an exclusive key; None for nothing. Raises OptionError."""
    exclusive, rate = (rule_of_call(option, options.get(option)) for option in KEYS)
    if exclusive and rate:
        raise OptionError(f"a job has one key: exclusive= or rate=, got: {exclusive!r} and {rate!r}")
    return exclusive or rate


def by_name(task_name: str, task: Task | None, message: Mapping[str, Any], settings: "Settings") -> str:
    """Return the rules that ``affinity_task_rules`` has for a message of another producer, "" for none.

    Raises OptionError if the arguments in the message make no key.
    """
    named = rules_by_name(task_name, settings)
    if not named.has_rules:
        return ""
    rule = RuleMaker(task_name, _arguments_of(task), named.rule or "", False, named.merge or "")
    return rule.text(*read(task_name, message))


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
    """Return the arguments of a call of a task from its encoded message. Raises OptionError if it is not JSON."""
    return arguments_in(task_name, revokes.decoded(message))


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
            f"the arguments of a call of task {task_name} cannot be read, so it has no key: {body!r:.200}"
        )
    return args, kwargs
