"""The marks at the end of a job's id, a row for each: the id alone tells arrows and workers what rules the job has.

An id has one mark of each place at most, in the order of the places: of a hint, of a rule, of keys. All that has to do
with marks is made from the rows: `marks`, the patterns of accepted fields (`job_fields`), how Lua reads ids and rules,
and what the conformance test draws.
"""

from typing import NamedTuple

HINT, RULE, KEYS = range(3)


class Mark(NamedTuple):
    """One mark. *place*: one of the three. *word*: the only word, ``word=K``, that the job's rules have for it; "":
    they have more than one word for it, whose grammar has code of its own.
    """

    character: str
    place: int
    word: str = ""


#: name -> mark, in the order of places.
MARKS = {
    "HINTED": Mark("~", HINT, "near"),  # `locality`
    "MERGES": Mark("+", RULE),  # a call that merges with others
    "BATCH": Mark("*", RULE),  # what the arrows made of several such calls; no message has it
    "KEYED": Mark("!", KEYS),  # one key
    "MANY_KEYED": Mark("&", KEYS),  # several keys
    "TENANTED": Mark("$", KEYS),  # the key of a tenant alone
}

#: The marks for which rules have one word, in the order in which rules have these words: before keys.
WORDS = tuple(mark for mark in MARKS.values() if mark.word)

HINTED, MERGES, BATCH, KEYED, MANY_KEYED, TENANTED = (
    MARKS[name].character for name in ("HINTED", "MERGES", "BATCH", "KEYED", "MANY_KEYED", "TENANTED")
)

#: All marks, as characters, and those of keys.
ALL = tuple(mark.character for mark in MARKS.values())
OF_KEYS = tuple(mark.character for mark in MARKS.values() if mark.place == KEYS)


def characters(place: int) -> str:
    """Return the marks of *place*."""
    return "".join(mark.character for mark in MARKS.values() if mark.place == place)
