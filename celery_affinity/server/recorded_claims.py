"""Claims as a worker hands them over to a recording, in pages: a page is a text of columns, which is read here as well.

A page is written while tasks run. Its rows differ in few of their values, and columns are put into JSON all at once.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

#: Type of the job, its lane, and the outcome of the claim. The lane is "" where the job's row is to say it, and the
#: job's rules, and whose claim it is.
Kind = tuple[str, str, str]

#: Job id, fencing number, kind and enqueue time of a claim; how long after that, µs, it arrived at the worker, its task
#: started, it ended, and the server's word came that its slot is free, or has another job (None: it did not happen);
#: numbers, in the worker, of the release whose reply brought it, and of the one that told its end (0: none).
ClaimRow = tuple[str, str, Kind, int, int, int | None, int | None, int | None, int, int]


class PageAsking(NamedTuple):
    """A page, and the jobs of which its server is asked: ids of *plain* ones, of which times alone are asked for.

    *others*: each job id, and its fencing number behind it.
    """

    text: str
    plain: Sequence[str]
    others: Sequence[str]


def asking(rows: Sequence[ClaimRow]) -> PageAsking:
    """Return *rows* as a page, and which of their jobs tell the times of all.

    The times of a job are those of the release that brought it, and of the one that told its end: with one job for each
    slot, every other one is enough.
    """
    if not rows:
        return PageAsking("", (), ())
    jobs, fences, kinds, enqueued, arrived, started, ended, freed, brought_by, releases = zip(*rows, strict=True)
    nths: dict[Kind, int] = {}
    nth_kinds = [nths.setdefault(kind, len(nths)) for kind in kinds]
    asked, known = [0] * len(rows), {0}
    plain: list[str] = []
    others: list[int] = []
    for nth in range(len(rows) - 1, -1, -1):
        if not kinds[nth][1]:
            others.append(nth)
        elif releases[nth] not in known or not brought_by[nth]:
            asked[nth] = 1
            plain.append(jobs[nth])
            known.add(releases[nth])
            known.add(brought_by[nth])
    columns = (jobs, fences, nth_kinds, enqueued, arrived, started, ended, freed, brought_by, releases, asked)
    text = json.dumps([list(nths), *columns], separators=(",", ":"), check_circular=False)
    return PageAsking(text, plain[::-1], [word for nth in reversed(others) for word in (jobs[nth], fences[nth])])


def read(text: str) -> list[tuple[ClaimRow, bool]]:
    """Return the rows of a page, and of each whether its times were asked for. Raises ValueError if it is no page."""
    if not text:
        return []
    try:
        kinds, jobs, fences, nth_kinds, *numbers = json.loads(text)
        known = [tuple(map(_word, kind)) for kind in kinds]
        rows = zip(map(_word, jobs), map(_word, fences), [known[nth] for nth in nth_kinds], *numbers, strict=True)
        return [_checked(row) for row in rows]
    except (TypeError, IndexError, RecursionError) as exc:
        raise ValueError(f"it is no page of claims: {exc}") from None


def _checked(row: tuple[Any, ...]) -> tuple[ClaimRow, bool]:
    job, fence, (type_, lane, outcome), enqueued, arrived, *times, brought_by, release, asked = row
    started, ended, freed = (None if time is None else _number(time) for time in times)
    since, numbers = (_number(enqueued), _number(arrived)), (_number(brought_by), _number(release))
    return (job, fence, (type_, lane, outcome), *since, started, ended, freed, *numbers), bool(asked)


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is expected, got: {value!r:.80}")
    return sys.intern(value)


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"a whole number is expected, got: {value!r:.80}")
    return value
