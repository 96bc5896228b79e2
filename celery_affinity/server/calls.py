"""Arguments of arrows, cut into calls that hold no server up: so many jobs a call, and acks together with ends."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from redis.exceptions import InvalidResponse

from ..lua.library import Argument, Arrow, arrow
from ..rules import bounds
from ..rules.ahead import Ahead
from ..rules.bounds import Bound
from ..rules.new_job import NewJob, in_short
from ..rules.protocol import MOST_BYTES, MOST_MOVES
from ..rules.recurring_call import RecurringCall
from .arguments import End
from .connections.in_flight import InFlight

#: An arrow, and its arguments.
ArrowCall = tuple[Arrow, list[Argument]]

Item = TypeVar("Item")

#: Largest number of jobs in one call of `publish`, which takes about 20 µs for each, and places `MOST_MOVES` at most.
TOGETHER = 25


def publishing(jobs: Iterable[NewJob]) -> Iterator[ArrowCall]:
    """Yield the calls that publish *jobs*, in their order. The jobs of a call all have a bound, or none has one."""
    publish = arrow("publish")
    arguments: list[Argument] = []
    bounded: dict[str, Bound] = {}
    count = size = 0
    for job in jobs:
        is_other = (job.bound is None) == bool(bounded) or bounded.get(job.type, job.bound) != job.bound
        if arguments and is_other:
            yield publish, _with_bounds(arguments, bounded)
            arguments, bounded, count, size = [], {}, 0, 0
        arguments += job.arguments
        if job.bound is not None:
            bounded[job.type] = job.bound
        count, size = count + 1, size + len(job.message)
        if count == TOGETHER or size > MOST_BYTES:
            yield publish, _with_bounds(arguments, bounded)
            arguments, bounded, count, size = [], {}, 0, 0
    if count == 1 and not bounded:
        yield publish, list(in_short(tuple(arguments)))
    elif arguments:
        yield publish, _with_bounds(arguments, bounded)


def _with_bounds(arguments: list[Argument], bounded: dict[str, Bound]) -> list[Argument]:
    return [*arguments, bounds.in_words(bounded)] if bounded else arguments


def ingesting(list_: str, jobs: Iterable[NewJob]) -> list[ArrowCall]:
    """Return a call for each of *jobs*, whose messages are in a list of stock Celery."""
    ingest = arrow("ingest")
    return [(ingest, ingest.arguments(job.arguments, list=list_, readable=int(job.readable))) for job in jobs]


def declaring(entries: Iterable[RecurringCall]) -> Iterator[list[Argument]]:
    """Yield the arguments of calls that declare *entries*, as many in each as a call of an arrow may take."""
    arguments: list[Argument] = []
    count = size = 0
    for entry in entries:
        arguments += entry.arguments
        count, size = count + 1, size + len(entry.signature)
        if count == TOGETHER or size > MOST_BYTES:
            yield arguments
            arguments, count, size = [], 0, 0
    if arguments:
        yield arguments


def telling(
    worker: str, acks: Sequence[tuple[str, str]], ends: Sequence[End], sequence: int, inline: bool, may_hold: Ahead
) -> list[ArrowCall]:
    """Return the calls that ack messages and that release the slots of ended jobs; no call without *acks* or *ends*."""
    told = []
    if acks:
        told.append((arrow("ack"), arrow("ack").arguments(worker=worker, rest=flat(acks))))
    if ends:
        release = arrow("release")
        arguments = release.arguments(
            rest=flat(ends), worker=worker, sequence=sequence, caller=int(inline), may_hold=may_hold.in_words
        )
        told.append((release, arguments))
    return told


def pages(items: Sequence[Item], most: int = MOST_MOVES) -> Iterator[Sequence[Item]]:
    """Yield *items*, *most* together: as many as one call moves."""
    for first in range(0, len(items), most):
        yield items[first : first + most]


def flat(rows: Iterable[Iterable[Argument]]) -> list[Argument]:
    """Return the values of all *rows*."""
    return [value for row in rows for value in row]


def check_kind(kind: type, reply: object, in_flight: InFlight) -> None:
    """Raise redis.InvalidResponse unless *reply* is of *kind*.

    The reply then answers another command, so the connection is closed.
    """
    if not isinstance(reply, kind):
        in_flight.close()
        raise InvalidResponse(f"a reply must be of the kind {kind.__name__}, got: {reply!r:.200}")
