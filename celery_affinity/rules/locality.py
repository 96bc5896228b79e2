"""Locality: a hint, a word for what a job works with, which its worker may have at hand from jobs before it.

`Locality` makes the hint, mostly by a template that each call fills with its arguments. The text, a part of field
"rules" of a job, has it encoded (`job_fields`).
"""

from dataclasses import dataclass
from typing import ClassVar

from ..errors import refuse
from .keyed.spelled import KeyFunction, Named, check_template, encoded_key, written

_ACCEPTED = "a hint (str)"


@dataclass(frozen=True)
class Locality(Named):
    """A job goes, as far as settings say so, to a worker that has lately ended a job with the same hint.

    *key*: the hint, as the *key* of `Exclusive`. Raises OptionError (a ValueError) for anything else.
    """

    key: str | KeyFunction

    option: ClassVar[str] = "locality"

    def __post_init__(self) -> None:
        check_template(self.option, self.key)

    def __json__(self) -> str:
        """Return the form that kombu writes into a message. Raises OptionError if the hint is made by a function."""
        return written(self.option, self.key)

    def text(self, key: str) -> str:
        """Return the rules of a job with the hint *key*. Raises OptionError for an invalid one."""
        return f"near={encoded_key(self.option, key)}"


_ANY = Locality("any")


def as_locality(value: object) -> Locality | None:
    """Return the rule of ``locality=`` of an Affinity: a hint, its template, a function that makes it, or None."""
    if value is None or isinstance(value, Locality):
        return value
    if isinstance(value, str) or callable(value):
        return Locality(value)
    raise refuse(Locality.option, f"{_ACCEPTED}, its template, or a function of args and kwargs", value)


def hint_of_call(value: object) -> str | None:
    """Return the rules of a job whose call says this hint; None for nothing, "" for False: no hint.

    Raises OptionError for a value that is not accepted.
    """
    if value is None:
        return None
    if value is False:
        return ""
    if not isinstance(value, str):
        raise refuse(Locality.option, f"{_ACCEPTED}, or False", value)
    return _ANY.text(value)
