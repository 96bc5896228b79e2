"""Exclusion and rate by key. `key_rules`: what a task or a call asks for. `template`: keys filled with arguments.

`spelled`: the text of a key in a job. `key_limits`: the setting ``affinity_limits``.

Exclusion, rate and tenant by key: the rules that a task or a call asks for, and the text of them in its job.

`Exclusive`, `Rate` and `TenantKey` name a key, mostly as a template that each call fills with its arguments
(`template`). The text, field "rules" of a job, has the key encoded, and the numbers that arrows go by (`job_fields`).

A rule that is one word of a job's rules, ``word=K`` (`known_marks`): the call's arguments mostly fill its value.

Locality: a hint, a word for what a job works with, which its worker may have at hand from jobs before it.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import ClassVar, Self, TypeVar

from ..errors import OptionError, refuse
from ..schema.constants import BY_SETTINGS, LONGEST_KEY, LONGEST_RATE_PERIOD_US, RATE_PREFIX, TENANT_PREFIX
from ..schema.job_record import FIELDS
from ..schema.keys import OF_TYPE
from ..schema.rules_codec import MARKS, keys_in
from ..schema.values import COUNT, decode_part
from .key_templates import (
    HASHED,
    KeyFunction,
    NamedKey,
    check_key,
    check_template,
    count_arguments,
    encoded_key,
    readable_key,
)

#: Prefixes of the keys of rates and of tenants. No exclusive key has one of them, so that they never meet.
OF_RATE, OF_TENANT = decode_part(RATE_PREFIX), decode_part(TENANT_PREFIX)

#: Prefixes that no exclusive key may have: for rates, for tenants, and for limits of a whole type.
RESERVED = (OF_RATE, OF_TENANT, OF_TYPE)

_PERIODS_US = {"s": 1_000_000, "m": 60_000_000, "h": LONGEST_RATE_PERIOD_US}

_RATE = re.compile(r"([1-9][0-9]{0,8})/([smh])")


@dataclass(frozen=True)
class Exclusive(NamedKey):
    """At most *limit* jobs of one *key* run at a time, whatever their tasks and types. The others wait in their places.

    *key*: a template that each call fills, or a function ``(args, kwargs) -> str | None``. In a template,
    ``"city:{city}"`` refers to an argument of the task by name, ``"{args[0]}"`` by position, and ``"{task}"`` to the
    task's name; write ``{{`` and ``}}`` for braces. If an argument in the template is None, or the function returns
    None, the call has no key and no limit. A job holds its key from its claim to its end, but not between a failure
    and its retry. *keep_order*: the key is reserved for the retry meanwhile; this requires a limit of 1.

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
            raise _reserved(self.key)
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
        """Return the rules of a job with *key*, which fills the template. Raises OptionError for an invalid key."""
        if key.startswith(RESERVED):
            raise _reserved(key)
        word = f"key={encoded_key(self.option, key)} limit={self.limit}"
        return f"{word} order=1" if self.keep_order else word


@dataclass(frozen=True)
class Rate(NamedKey):
    """Jobs of one *key* start at a given *rate* in the whole fleet. Waiting jobs take no slot.

    *rate*: as Celery's ``rate_limit``, ``"100/s"``, ``"100/m"`` or ``"100/h"``, with a whole number above 0. After a
    full period without starts, that many jobs may start at once; then starts become free again evenly over the
    period. *key*: as the *key* of `Exclusive`.

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
        """Return the rules of a job with *key*, which fills the template. Raises OptionError for an invalid key."""
        check_key(self.option, key)
        return f"key={encoded_key(self.option, self.prefix + key)} rate={as_stated(self.rate)}"


@dataclass(frozen=True)
class TenantKey(NamedKey):
    """The key of the tenant on whose behalf a job runs. Settings alone say how many jobs of it may run at a time.

    *key*: the name of the tenant, as the *key* of `Exclusive`. Raises OptionError (a ValueError) for anything else.
    """

    key: str | KeyFunction

    option: ClassVar[str] = "tenant"
    prefix: ClassVar[str] = OF_TENANT

    def __post_init__(self) -> None:
        check_template(self.option, self.key)

    def __json__(self) -> str:
        """Return the form that kombu writes into a message. Raises OptionError if the name is made by a function."""
        return readable_key(self.option, self.key)

    def text(self, key: str) -> str:
        """Return the rules of a job of the tenant *key*. Raises OptionError for an invalid name."""
        check_key(self.option, key)
        name = encoded_key(self.option, self.prefix + key)
        if HASHED in name:
            raise refuse(
                self.option, f"a name of at most {LONGEST_KEY} characters, percent-encoded, with its prefix", key
            )
        return f"key={name} quota={BY_SETTINGS}"


def keeps_order(rule: "Rule | str") -> bool:
    """Return whether the key of *rule*, or of a part of rules as jobs have them, is kept for a job that is retried."""
    return rule.endswith(" order=1") if isinstance(rule, str) else isinstance(rule, Exclusive) and rule.keep_order


def specificity(rule: "Rule | str") -> float:
    """Return a number by which keys are compared: that of a key that fewer jobs share is higher, as far as can be told.

    It is the number of arguments that a template names. A function, and a text, may make a key for each call.
    """
    if isinstance(rule, str) or not isinstance(rule.key, str):
        return math.inf
    return count_arguments(rule.option, rule.key)


def as_stated(rate: str) -> str:
    """Return a *rate* such as ``100/m``, which `is_rate` accepts, as the arrows have it: ``100/60000000``."""
    starts, _, period = rate.partition("/")
    return f"{starts}/{_PERIODS_US[period]}"


def as_explicit(stated: str) -> str:
    """Return ``100/m`` for ``100/60000000``: the reverse of `as_stated`. Another period is returned as it is."""
    starts, _, period_us = stated.partition("/")
    return next((f"{starts}/{period}" for period, us in _PERIODS_US.items() if str(us) == period_us), stated)


def is_rate(value: object) -> bool:
    return isinstance(value, str) and _RATE.fullmatch(value) is not None


#: A rule by key. A job has one of each kind at most.
Rule = Exclusive | Rate | TenantKey

_R = TypeVar("_R", Exclusive, Rate)


def as_exclusive(value: object) -> Exclusive | None:
    """Return the rule of ``exclusive=`` of an Affinity: a template, an Exclusive, a mapping of its fields, or None."""
    if isinstance(value, str):
        return Exclusive(value)
    return _as(Exclusive, "a key (str) or an Exclusive", value)


def as_rate(value: object) -> Rate | None:
    """Return the rule of ``rate=`` of an Affinity: a Rate, a mapping of its fields, or None."""
    return _as(Rate, "a Rate, such as Rate('100/m', 'crawl:{host}')", value)


def as_tenant(value: object) -> TenantKey | None:
    """Return the rule of ``tenant=`` of an Affinity: a name, its template, a function that makes it, or None."""
    if value is None or isinstance(value, TenantKey):
        return value
    if isinstance(value, str) or callable(value):
        return TenantKey(value)
    raise refuse(TenantKey.option, "a name of a tenant (str), its template, or a function of args and kwargs", value)


def check_tenant(name: str) -> str:
    """Return the rules of a job of exactly this tenant. Raises OptionError for an invalid name."""
    return _OF_TENANT.text(name)


def tenant_in(rules: object) -> str | None:
    """Return the tenant that *rules* of a job say, decoded; None if they say none."""
    keys = keys_in(str(rules)) if is_rules_dict(rules) else ()
    return next((decode_part(each.key).removeprefix(OF_TENANT) for each in keys if each.stated is None), None)


def _as(of: type[_R], accepted: str, value: object) -> _R | None:
    if value is None or isinstance(value, of):
        return value
    refusal = refuse(of.option, accepted, value)
    if not isinstance(value, Mapping):
        raise refusal
    try:
        return of(**value)
    except TypeError:  # a field is missing, or a name is no text
        raise refusal from None


def rule_of_call(option: str, value: object) -> Rule | str | None:
    """Return what *option* of a call says: a rule, the key itself (not a rate's); None for nothing, or for False.

    Raises OptionError for a value that is not accepted.
    """
    if value is None or value is False:
        return None
    if isinstance(value, str) and option != Rate.option:
        rule_of_text(option, value)
        return value
    if option == TenantKey.option:
        raise refuse(TenantKey.option, "a name of a tenant (str), or False", value)
    if option == Exclusive.option:
        return _as(Exclusive, "a key (str), an Exclusive, or False", value)
    return _as(Rate, "a Rate, such as Rate('100/m', 'crawl:{host}'), or False", value)


def rule_of_text(option: str, key: str) -> str:
    """Return the rules of a job with this *key* as *option* of its call. Raises OptionError for an invalid key."""
    return check_tenant(key) if option == TenantKey.option else _ONE_AT_A_TIME.text(key)


def key_in(rules: object) -> str | None:
    """Return the exclusive key that *rules* of a job say, or else that of a rate, decoded; None if they say none."""
    keys = keys_in(str(rules)) if is_rules_dict(rules) else ()
    found = {isinstance(each.stated, int): each.key for each in keys if each.stated is not None}
    key = found.get(True) or found.get(False)
    return None if key is None else decode_part(key)


def is_rules_dict(value: object) -> bool:
    """Return whether *value* is the text of rules, or "" for none."""
    return value == "" or (isinstance(value, str) and _rules_in_words().fullmatch(value) is not None)


@cache
def _rules_in_words() -> re.Pattern[str]:
    """Return the pattern of rules. It is compiled at its first use: that takes as long as half of our import."""
    return re.compile(FIELDS["rules"].pattern)


def _reserved(key: str) -> OptionError:
    *some, last = map(repr, RESERVED)
    return refuse("key of exclusive", f"one that does not begin with {', '.join(some)} or {last}", key)


#: The rules of a call that says a key alone, and of one that says a tenant.
_ONE_AT_A_TIME, _OF_TENANT = Exclusive("any"), TenantKey("any")


@dataclass(frozen=True)
class ValueRule(NamedKey):
    """A rule of one word. *key*: its value, as the *key* of `Exclusive`. Raises OptionError for anything else.

    A subclass says its *option*, its *word* in a job's rules, and what values are *accepted*, in words.
    """

    key: str | KeyFunction

    option: ClassVar[str]
    word: ClassVar[str]
    accepted: ClassVar[str]

    def __post_init__(self) -> None:
        check_template(self.option, self.key)

    def __json__(self) -> str:
        """Return the form that kombu writes into a message. Raises OptionError if a function makes the value."""
        return readable_key(self.option, self.key)

    def text(self, key: str) -> str:
        """Return the rules of a job with the value *key*. Raises OptionError for an invalid one."""
        return f"{self.word}={encoded_key(self.option, key)}"

    @classmethod
    def of_task(cls, value: object) -> Self | None:
        """Return the rule that an Affinity says: a value, its template, a function that makes it, or None."""
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, str) or callable(value):
            return cls(value)
        raise refuse(cls.option, f"{cls.accepted}, its template, or a function of args and kwargs", value)

    @classmethod
    def of_call(cls, value: object) -> str | None:
        """Return the rules of a job whose call says this value; None for nothing, "" for False: no such rule.

        Raises OptionError for a value that is not accepted.
        """
        if value is None:
            return None
        if value is False:
            return ""
        if not isinstance(value, str):
            raise refuse(cls.option, f"{cls.accepted}, or False", value)
        return cls("any").text(value)


class Locality(ValueRule):
    """A job goes, as far as settings say so, to a worker that has lately ended a job with the same hint.

    *key*: the hint, as the *key* of `Exclusive`. Raises OptionError (a ValueError) for anything else.
    """

    option: ClassVar[str] = "locality"
    word: ClassVar[str] = MARKS["HINTED"].word
    accepted: ClassVar[str] = "a hint (str)"
