"""A rule that is one word of a job's rules, ``word=K`` (`known_marks`): the call's arguments mostly fill its value."""

from dataclasses import dataclass
from typing import ClassVar, Self

from ..errors import refuse
from .keyed.spelled import KeyFunction, Named, check_template, encoded_key, written


@dataclass(frozen=True)
class Word(Named):
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
        return written(self.option, self.key)

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
