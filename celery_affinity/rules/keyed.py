"""Exclusion and rate by key: the rules that a task or a call asks for, and the text of them in its job.

`Exclusive` and `Rate` name a key, mostly as a template that each call fills with its arguments (`key_template`). The
text, field "rules" of a job, has the key encoded, and the figures that the scripts go by (`job_fields`).
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar, Self, TypeVar

from ..errors import OptionError, refuse
from .job_fields import FIELDS
from .job_rules import parse
from .key_template import parsed
from .keys import decode, encode
from .protocol import LONGEST_KEY, LONGEST_NUMBER
from .spelling import closest

#: A function that makes a key of a call's positional and keyword arguments; None: the call has no key.
KeyFunction = Callable[[tuple[Any, ...], dict[str, Any]], str | None]

#: Prefix of the keys of rates. No exclusive key has the prefix, so that the two never meet.
_OF_RATE = "rate:"

#: Prefixes that no exclusive key may have: one is for rates, the other for limits of a whole type.
RESERVED = (_OF_RATE, "type:")

_PERIODS_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}

_RATE = re.compile(rf"([1-9][0-9]{{0,{LONGEST_NUMBER - 1}}})/([smh])")

#: Hexadecimal digits that end the encoded form of a key that is too long, and what goes before them: `encode` never
#: writes these two characters, so no other key has such a form.
_DIGITS, _HASHED = 32, "%-"

_KEY = "a text that is not empty, such as 'city:{city}', or a function of args and kwargs"


class _Named:
    """Refuses a field that there is not, and asks which one is meant."""

    def __new__(cls, *_: object, **named: object) -> Self:
        names = [each.name for each in fields(cls)]  # type: ignore[arg-type]  # a dataclass by then
        for name in named:
            if name not in names:
                close = closest(name.lower(), names)
                question = f"; did you mean {close!r}?" if close else ""
                raise OptionError(f"{cls.__name__} takes {', '.join(names)}, got: {name!r}{question}")
        return super().__new__(cls)


@dataclass(frozen=True)
class Exclusive(_Named):
    """At most *limit* jobs of one *key* run at a time, of whatever task and type. The others wait in their places.

    *key*: a template, filled for each call: ``"city:{city}"`` by an argument of the task, ``"{args[0]}"`` by position,
    ``"{task}"`` by the task's name (``{{`` and ``}}`` are braces); or a function ``(args, kwargs) -> str | None``. A
    call has no key, and runs beside any other, if an argument named in the template, or what the function returns, is
    None. A job holds its key from its claim to its end, but not between its tries, unless *keep_order*: then only the
    retry may have the key next; that goes with a limit of 1 alone.

    Raises OptionError (a ValueError) for anything else: an empty key, a key that begins with ``rate:`` or ``type:``, a
    limit that is no whole number above 0.
    """

    key: str | KeyFunction
    limit: int = 1
    _: KW_ONLY
    keep_order: bool = False

    option: ClassVar[str] = "exclusive"

    def __post_init__(self) -> None:
        _check_template(self.option, self.key)
        if isinstance(self.key, str) and self.key.startswith(RESERVED):
            raise _reserved(self.key)
        if not _is_whole(self.limit) or not 0 < self.limit < 10**LONGEST_NUMBER:
            raise refuse("limit of exclusive", "a whole number, 1 or more", self.limit)
        if not isinstance(self.keep_order, bool):
            raise refuse("keep_order of exclusive", "True or False", self.keep_order)
        if self.keep_order and self.limit != 1:
            raise refuse("limit of exclusive with keep_order", "1", self.limit)

    def __json__(self) -> dict[str, object]:
        """Return the form that kombu writes into a message. Raises OptionError if the key is a function."""
        return {"key": _written(self.option, self.key), "limit": self.limit, "keep_order": self.keep_order}

    def text(self, key: str) -> str:
        """Return the rules of a job with *key*, which fills the template. Raises OptionError if it cannot be one."""
        if key.startswith(RESERVED):
            raise _reserved(key)
        word = f"key={encoded_key(self.option, key)} limit={self.limit}"
        return f"{word} order=1" if self.keep_order else word


@dataclass(frozen=True)
class Rate(_Named):
    """Jobs of one *key* start at a given *rate* in the whole fleet. The others take no slot while they wait.

    *rate*: as Celery's ``rate_limit``, ``"100/s"``, ``"100/m"`` or ``"100/h"``, with a whole number above 0. That many
    jobs may start at once if none did for the whole of the period; each start is free again after its share of it.
    *key*: as that of `Exclusive`.

    Raises OptionError (a ValueError) for anything else.
    """

    rate: str
    key: str | KeyFunction

    option: ClassVar[str] = "rate"

    def __post_init__(self) -> None:
        if not isinstance(self.rate, str) or not _RATE.fullmatch(self.rate):
            raise refuse("rate", "a whole number above 0 for each s, m or h, such as '100/m'", self.rate)
        _check_template(self.option, self.key)

    def __json__(self) -> dict[str, object]:
        """Return the form that kombu writes into a message. Raises OptionError if the key is a function."""
        return {"rate": self.rate, "key": _written(self.option, self.key)}

    def text(self, key: str) -> str:
        """Return the rules of a job with *key*, which fills the template. Raises OptionError if it cannot be one."""
        tokens, _, period = self.rate.partition("/")
        _check_filled(self.option, key)
        return f"key={encoded_key(self.option, _OF_RATE + key)} rate={tokens}/{_PERIODS_US[period]}"


#: A rule by key. A job has one at most.
Rule = Exclusive | Rate

_R = TypeVar("_R", Exclusive, Rate)


def as_exclusive(value: object) -> Exclusive | None:
    """Return the rule of ``exclusive=`` of an Affinity: a template, an Exclusive, a mapping of its fields, or None."""
    if isinstance(value, str):
        return Exclusive(value)
    return _as(Exclusive, "a key (str) or an Exclusive", value)


def as_rate(value: object) -> Rate | None:
    """Return the rule of ``rate=`` of an Affinity: a Rate, a mapping of its fields, or None."""
    return _as(Rate, "a Rate, such as Rate('100/m', 'crawl:{host}')", value)


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


def of_call(option: str, value: object) -> Rule | str | None:
    """Return what *option* of a call says: a rule, the key itself (exclusive alone); None for nothing, or for False.

    Raises OptionError for a value that is not accepted.
    """
    if value is None or value is False:
        return None
    if option == Exclusive.option:
        if isinstance(value, str):
            literal(value)
            return value
        return _as(Exclusive, "a key (str), an Exclusive, or False", value)
    return _as(Rate, "a Rate, such as Rate('100/m', 'crawl:{host}'), or False", value)


def literal(key: str) -> str:
    """Return the rules of a job with exactly this exclusive *key*. Raises OptionError if it cannot be one."""
    return _ONE_AT_A_TIME.text(key)


def encoded_key(option: str, key: str) -> str:
    """Return *key* as the scripts have it, of 255 characters at most: a longer one keeps its begin, and has a hash.

    *option*: named by the OptionError that an empty key raises, or one that has no UTF-8 form.
    """
    _check_filled(option, key)
    try:
        encoded = encode(key)
        if len(encoded) <= LONGEST_KEY:
            return encoded
        digest = hashlib.blake2b(key.encode(), digest_size=_DIGITS // 2).hexdigest()
    except UnicodeEncodeError as exc:
        raise refuse(f"key of {option}", "a text in UTF-8", key) from exc
    room = LONGEST_KEY - len(_HASHED) - _DIGITS
    begin = key[:room]
    while (excess := len(encode(begin)) - room) > 0:
        begin = begin[: -max(1, excess // 12)]  # no character takes more than twelve
    return f"{encode(begin)}{_HASHED}{digest}"


def key_in(rules: object) -> str | None:
    """Return the key that a text by `Exclusive.text` or `Rate.text` has, decoded; None for anything else."""
    found = parse(str(rules)) if are_rules(rules) else None
    return decode(found.key) if found else None


are_rules_in_words = re.compile(FIELDS["rules"].pattern).fullmatch


def are_rules(value: object) -> bool:
    """Return whether *value* is the text of rules, or "" for none."""
    return isinstance(value, str) and are_rules_in_words(value) is not None


def option_of(rules: Rule | str) -> str:
    """Return the option that says *rules*, which are not ""."""
    if isinstance(rules, str):
        return Rate.option if " rate=" in rules else Exclusive.option
    return rules.option


def rule_of_name(value: object) -> Rule | None:
    """Return what a value of ``affinity_task_rules`` means: ``{"exclusive": ...}``, ``{"rate": ...}``, or {} for none.

    Raises OptionError.
    """
    if not isinstance(value, Mapping) or not value.keys() <= {Exclusive.option, Rate.option}:
        raise refuse("a rule of a name", "{'exclusive': ...}, {'rate': ...} or {}", value)
    exclusive, rate = as_exclusive(value.get(Exclusive.option)), as_rate(value.get(Rate.option))
    if exclusive and rate:
        raise OptionError(f"a job has one key: exclusive= or rate=, got: {exclusive!r} and {rate!r}")
    return exclusive or rate


def _check_template(option: str, key: object) -> None:
    if callable(key):
        return
    if not isinstance(key, str) or not key:
        raise refuse(f"key of {option}", _KEY, key)
    parsed(option, key)


def _check_filled(option: str, key: str) -> None:
    if not isinstance(key, str) or not key:
        raise refuse(f"key of {option}", "a text that is not empty", key)


def _reserved(key: str) -> OptionError:
    return refuse("key of exclusive", f"one that does not begin with {' or '.join(map(repr, RESERVED))}", key)


def _written(option: str, key: str | KeyFunction) -> str:
    if callable(key):
        raise OptionError(
            f"key of {option} must be a text where a signature with it is written into a message, got: {key!r}"
        )
    return key


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


#: The rule of a call that says a key alone.
_ONE_AT_A_TIME = Exclusive("any")
