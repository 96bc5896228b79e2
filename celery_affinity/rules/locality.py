"""Locality: a hint, a word for what a job works with, which its worker may have at hand from jobs before it."""

from typing import ClassVar

from .known_marks import MARKS
from .word import Word


class Locality(Word):
    """A job goes, as far as settings say so, to a worker that has lately ended a job with the same hint.

    *key*: the hint, as the *key* of `Exclusive`. Raises OptionError (a ValueError) for anything else.
    """

    option: ClassVar[str] = "locality"
    word: ClassVar[str] = MARKS["HINTED"].word
    accepted: ClassVar[str] = "a hint (str)"
