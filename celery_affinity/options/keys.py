"""Rules by key that a task or a call can have: `Exclusive`, `Rate`, `TenantKey` and `Locality`. Also a task's `Size`.

A rule has a key, usually a template that each call fills with its arguments (`key_templates`). The job's field "rules"
contains the encoded key and the numbers that the server functions use (`rules_codec`).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self, TypeVar

from ..errors import OptionError, refuse
from ..schema.constants import MAX_KEY_LENGTH, MAX_RATE_PERIOD_US, MAX_SIZE, RATE_PREFIX, TENANT_PREFIX
from ..schema.keys import OF_TYPE
from ..schema.rules_codec import StatedKey, decode_rules, encode_rule, is_valid
from ..schema.values import COUNT, decode_part
from .key_templates import (
    HASHED,
    Arguments,
    KeyFunction,
    NamedKey,
    check_key,
    check_template,
    count_arguments,
    encoded_key,
    fill_template,
    readable_key,
)

#: Prefixes of the keys of rates and tenants. No exclusive key can have such a prefix, so the keys cannot collide.
OF_RATE, OF_TENANT = decode_part(RATE_PREFIX), decode_part(TENANT_PREFIX)
#: Reserved prefixes of exclusive keys: rates, tenants, and limits of a whole type.
RESERVED = (OF_RATE, OF_TENANT, OF_TYPE)
_PERIODS_US = {"s": 1_000_000, "m": 60_000_000, "h": MAX_RATE_PERIOD_US}
_RATE = re.compile(r"([1-9][0-9]{0,8})/([smh])")


@dataclass(frozen=True)
class Exclusive(NamedKey):
    """At most *limit* jobs with the same *key* run at a time, regardless of task and type. The others wait.

    *key*: a template that each call fills, or a function ``(args, kwargs) -> str | None``. In a template,
    ``"city:{city}"`` refers to an argument of the task by name, ``"{args[0]}"`` by position, and ``"{task}"`` to the
    task's name; write ``{{`` and ``}}`` for braces. If an argument in the template is None, or the function returns
    None, the call has no key and no limit. A job holds its key from its claim to its end, but not between a failure
    and its retry.
    *keep_order*: the key stays reserved between a failure and the retry. Requires a limit of 1.

    Raises OptionError (a ValueError) for anything else: an empty key, a key that begins with ``rate:``, ``tenant:`` or
    ``type:``, a limit that is not a whole number above 0.
    """

    key: str | KeyFunction
    limit: int = 1
    _: KW_ONLY
    keep_order: bool = False

    option: ClassVar[str] = "exclusive"
    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_template(self.option, self.key)
        if isinstance(self.key, str) and self.key.startswith(RESERVED):
            raise _reserved_prefix_error(self.key)
        if (accepted := COUNT(self.limit)) is not None:
            raise refuse("limit of exclusive", accepted, self.limit)
        if not isinstance(self.keep_order, bool):
            raise refuse("keep_order of exclusive", "True or False", self.keep_order)
        if self.keep_order and self.limit != 1:
            raise refuse("limit of exclusive with keep_order", "1", self.limit)

    def __json__(self) -> dict[str, object]:
        """Return the form that kombu writes into a message. Raises OptionError if the key is a function."""
        return {"key": readable_key(self.option, self.key), "limit": self.limit, "keep_order": self.keep_order}

    def text(self, key: str) -> str:
        """Return the rules of a job whose filled template is *key*. Raises OptionError for an invalid key."""
        if key.startswith(RESERVED):
            raise _reserved_prefix_error(key)
        encoded = encoded_key(self.option, key)
        return encode_rule("ordered" if self.keep_order else "limit", key=encoded, limit=self.limit)


@dataclass(frozen=True)
class Rate(NamedKey):
    """Jobs with the same *key* start at a given *rate* in the whole fleet. Waiting jobs take no slot.

    *rate*: like Celery's ``rate_limit``: ``"100/s"``, ``"100/m"`` or ``"100/h"``, with a whole number above 0. After a
    full period without starts, all of these jobs can start immediately. Then starts become available again evenly over
    the period.
    *key*: like the *key* of `Exclusive`.

    Raises OptionError (a ValueError) for anything else.
    """

    rate: str
    key: str | KeyFunction

    option: ClassVar[str] = "rate"
    prefix: ClassVar[str] = OF_RATE

    def __post_init__(self) -> None:
        if not is_rate(self.rate):
            raise refuse(
                "rate", "a whole number above 0 of up to 9 digits for each s, m or h, such as '100/m'", self.rate
            )
        check_template(self.option, self.key)

    def __json__(self) -> dict[str, object]:
        """Return the form that kombu writes into a message. Raises OptionError if the key is a function."""
        return {"rate": self.rate, "key": readable_key(self.option, self.key)}

    def text(self, key: str) -> str:
        """Return the rules of a job whose filled template is *key*. Raises OptionError for an invalid key."""
        check_key(self.option, key)
        tokens, _, period_us = as_stated(self.rate).partition("/")
        rate_key = encoded_key(self.option, self.prefix + key)
        return encode_rule("rate", rate_key=rate_key, tokens=tokens, period_us=period_us)


@dataclass(frozen=True)
class _KeyAlone(NamedKey):
    """A rule that has nothing but a key."""

    key: str | KeyFunction

    option: ClassVar[str]

    def __post_init__(self) -> None:
        check_template(self.option, self.key)

    def __json__(self) -> str:
        """Return the form that kombu writes into a message. Raises OptionError if the key is a function."""
        return readable_key(self.option, self.key)


class TenantKey(_KeyAlone):
    """The tenant on whose behalf a job runs. Only settings limit the number of a tenant's running jobs.

    *key*: the name of the tenant, like the *key* of `Exclusive`. Raises OptionError (a ValueError) for anything else.
    """

    option: ClassVar[str] = "tenant"
    prefix: ClassVar[str] = OF_TENANT

    def text(self, key: str) -> str:
        """Return the rules of a job of the tenant *key*. Raises OptionError for an invalid name."""
        check_key(self.option, key)
        name = encoded_key(self.option, self.prefix + key)
        if HASHED in name:
            raise refuse(
                self.option, f"a name of at most {MAX_KEY_LENGTH} characters, percent-encoded, with its prefix", key
            )
        return encode_rule("tenant", tenant_key=name)


def keeps_order(rule: "Rule | str") -> bool:
    """Return True if the key of *rule* (or of an encoded rule) stays reserved for a job's retry."""
    if isinstance(rule, str):
        return any(key.keeps_order for key in decode_rules(rule).keys)
    return isinstance(rule, Exclusive) and rule.keep_order


def specificity(rule: "Rule | str") -> float:
    """Return a number to compare keys: higher for a key that is probably shared by fewer jobs.

    It is the number of arguments in the template. Functions and literal keys can differ for each call.
    """
    if isinstance(rule, str) or not isinstance(rule.key, str):
        return math.inf
    return count_arguments(rule.option, rule.key)


def as_stated(rate: str) -> str:
    """Return the valid *rate*, such as ``100/m``, in the format of the server functions: ``100/60000000``."""
    starts, _, period = rate.partition("/")
    return f"{starts}/{_PERIODS_US[period]}"


def as_explicit(stated: str) -> str:
    """Return ``100/m`` for ``100/60000000``: the reverse of `as_stated`. A rate with another period stays unchanged."""
    starts, _, period_us = stated.partition("/")
    return next((f"{starts}/{period}" for period, us in _PERIODS_US.items() if str(us) == period_us), stated)


def is_rate(value: object) -> bool:
    return isinstance(value, str) and _RATE.fullmatch(value) is not None


#: A rule by key. A job has at most one of each kind.
Rule = Exclusive | Rate | TenantKey
_RuleClass = TypeVar("_RuleClass", Exclusive, Rate)


def as_exclusive(value: object) -> Exclusive | None:
    """Return the rule for ``exclusive=`` of an Affinity: a template, an Exclusive, a mapping of its fields, or None."""
    if isinstance(value, str):
        return Exclusive(value)
    return _as_rule(Exclusive, "a key (str) or an Exclusive", value)


def as_rate(value: object) -> Rate | None:
    """Return the rule for ``rate=`` of an Affinity: a Rate, a mapping of its fields, or None."""
    return _as_rule(Rate, "a Rate, such as Rate('100/m', 'crawl:{host}')", value)


def as_tenant(value: object) -> TenantKey | None:
    """Return the rule for ``tenant=`` of an Affinity: a name, its template, a function that returns it, or None."""
    if value is None or isinstance(value, TenantKey):
        return value
    if isinstance(value, str) or callable(value):
        return TenantKey(value)
    raise refuse(TenantKey.option, "a name of a tenant (str), its template, or a function of args and kwargs", value)


def check_tenant(name: str) -> str:
    """Return the rules of a job of the tenant *name* (not a template). Raises OptionError for an invalid name."""
    return _ANY_TENANT.text(name)


def tenant_in(rules: object) -> str | None:
    """Return the decoded tenant in the *rules* of a job, or None."""
    keys = _keys_in(rules)
    return next((decode_part(key.key).removeprefix(OF_TENANT) for key in keys if key.is_of_tenant), None)


_ONE_OF_EACH = (
    "A job can have one exclusive key and one rate: share a key among the tasks, limit the type, as in "
    "affinity_limits = {'type:pdf': 4}, or keep slots free with affinity_reserve"
)


def _as_rule(rule_class: type[_RuleClass], accepted: str, value: object) -> _RuleClass | None:
    if value is None or isinstance(value, rule_class):
        return value
    refusal = refuse(rule_class.option, accepted, value)
    if isinstance(value, (list, tuple, set, frozenset)):
        raise OptionError(f"{refusal}. {_ONE_OF_EACH}")
    if not isinstance(value, Mapping):
        raise refusal
    try:
        return rule_class(**value)
    except TypeError:  # a field is missing, or a field name is not a str
        raise refusal from None


def rule_of_call(option: str, value: object) -> Rule | str | None:
    """Return the rule for *option* of a call: None if unset, "" for False, the rules of a job for a literal key.

    Raises OptionError for an invalid value.
    """
    if value is None or value is False:
        return None if value is None else ""
    if isinstance(value, str) and option != Rate.option:
        return check_tenant(value) if option == TenantKey.option else _ANY_EXCLUSIVE.text(value)
    if option == TenantKey.option:
        raise refuse(TenantKey.option, "a name of a tenant (str), or False", value)
    if option == Exclusive.option:
        return _as_rule(Exclusive, "a key (str), an Exclusive, or False", value)
    return _as_rule(Rate, "a Rate, such as Rate('100/m', 'crawl:{host}'), or False", value)


def key_in(rules: object) -> str | None:
    """Return the decoded exclusive key in the *rules* of a job, or its rate key, or None."""
    by_kind = {key.is_exclusive: key.key for key in _keys_in(rules) if not key.is_of_tenant}
    key = by_kind.get(True) or by_kind.get(False)
    return None if key is None else decode_part(key)


def _keys_in(rules: object) -> tuple[StatedKey, ...]:
    return decode_rules(str(rules)).keys if is_valid(rules) else ()


def _reserved_prefix_error(key: str) -> OptionError:
    *others, last = map(repr, RESERVED)
    return refuse("key of exclusive", f"one that does not begin with {', '.join(others)} or {last}", key)


#: Rules for calls with a literal key, and for calls with a literal tenant.
_ANY_EXCLUSIVE, _ANY_TENANT = Exclusive("any"), TenantKey("any")


class Locality(_KeyAlone):
    """A job prefers, depending on settings, a worker that has recently completed a job with the same hint.

    *key*: the hint, like the *key* of `Exclusive`. Raises OptionError (a ValueError) for anything else.
    """

    option: ClassVar[str] = "locality"

    def text(self, key: str) -> str:
        """Return the rules of a job with the hint *key*: a single token. Raises OptionError for an invalid hint."""
        return encode_rule("hint", hint=encoded_key(self.option, key))

    @classmethod
    def of_task(cls, value: object) -> Self | None:
        """Return the rule for the option of an Affinity: a hint, its template, a function that returns it, or None."""
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, str) or callable(value):
            return cls(value)
        raise refuse(cls.option, "a hint (str), its template, or a function of args and kwargs", value)

    @classmethod
    def of_call(cls, value: object) -> str | None:
        """Return the rules of a job for the option of its call: None if unset, "" for False (no hint).

        Raises OptionError for an invalid value.
        """
        if value is None:
            return None
        if value is False:
            return ""
        if not isinstance(value, str):
            raise refuse(cls.option, "a hint (str), or False", value)
        return cls("any").text(value)


#: Function of a call's positional and keyword arguments that returns the call's size, or None if it is unknown.
SizeFunction = Callable[[tuple[Any, ...], dict[str, Any]], float | None]


@dataclass(frozen=True)
class Size(NamedKey):
    """The size of a task's calls: a number that predicts the run time. Publishers and workers evaluate it.

    *key*: a template such as ``"{pages}"``, like the *key* of `Exclusive`, or a function. Raises OptionError (a
    ValueError) for anything else, including a template without an argument.
    """

    key: str | SizeFunction

    option: ClassVar[str] = "size"

    def __post_init__(self) -> None:
        is_template = isinstance(self.key, str) and count_arguments(self.option, self.key) > 0
        if not (is_template or callable(self.key)):
            accepted = "a template with an argument, such as '{pages}', or a function of args and kwargs"
            raise refuse(self.option, accepted, self.key)

    def __json__(self) -> str:
        """Return the form that kombu writes into a message. Raises OptionError if the key is a function."""
        if callable(self.key):
            raise refuse(self.option, "a template where a signature with it is written into a message", self.key)
        return self.key

    def of_call(
        self, task_name: str, arguments: Arguments, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> float | None:
        """Return the size of a call, or None if it is unknown. Raises OptionError unless it is a number of at least 0,
        and any error of a function.
        """
        if isinstance(self.key, str):
            value: Any = fill_template(self.option, self.key, task_name, arguments, args, kwargs)
        else:
            value = self.key(tuple(args), dict(kwargs))
        if value is None:
            return None
        try:
            size = float(value)
        except (TypeError, ValueError, OverflowError):
            size = math.nan
        if not 0 <= size <= MAX_SIZE:
            raise refuse(f"size of a call of task {task_name}", f"a number from 0 to {MAX_SIZE:.0e}", value)
        return size


def as_size(value: Any) -> Size | None:
    """Return the size for the option of an Affinity: a Size, a template, a function that returns the size, or None."""
    return value if value is None or isinstance(value, Size) else Size(value)
