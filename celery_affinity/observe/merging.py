"""The calls of batches: calls that merged, wait together and share one run."""

from collections.abc import Sequence
from typing import NamedTuple

from ..rules.rows import text_of
from ..server.reader import Reader


class Calls(NamedTuple):
    """Calls of one batch. *first*: the job id of the oldest one, "" if there is none."""

    first: str
    number: int


def calls_of(reader: Reader, batches: Sequence[str]) -> dict[str, Calls]:
    """Return, by batch, its calls that have not ended. All calls of a dead letter count: a replay runs them again."""
    if not batches:
        return {}
    keys = [reader.key(name, batch) for batch in batches for name in ("callers", "told_callers")]
    heads = reader.ask([("zrange", key, 0, 0, False, True) for key in keys])
    numbers = reader.ask([("zcard", key) for key in keys])
    found = {}
    for nth, batch in enumerate(batches):
        both = slice(2 * nth, 2 * nth + 2)
        first = min((head[0] for head in heads[both] if head), key=lambda member: member[1], default=(b"", 0))
        found[batch] = Calls(text_of(first[0]), sum(number or 0 for number in numbers[both]))
    return found
