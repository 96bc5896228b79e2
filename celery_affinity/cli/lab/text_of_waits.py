"""Waits and the use of slots before and after, or recorded and replayed, as tables for people."""

from collections.abc import Mapping, Sequence

from ...lab.waits import SlotUse, WaitReport, Waits
from ..words import duration, table

_NONE = Waits(0, 0)


def tables(before: WaitReport, after: WaitReport, names: tuple[str, str], unclaimed: str = "never started") -> str:
    """Return the waits by type, mode and tenant, then the use of slots. *names*: of the two reports.

    *unclaimed*: heads the numbers of jobs without a wait.
    """
    head = ("", "jobs", *(f"{what} {name}" for what in ("p50", "p95", "max") for name in names), unclaimed)
    all_start = before.all.unclaimed == after.all.unclaimed == 0
    rows = [
        *_rows({"all": before.all}, {"all": after.all}),
        *_rows(before.types, after.types),
        *_rows(before.modes, after.modes),
        *_rows(before.tenants, after.tenants, "tenant "),
    ]
    used = table(("slots", *(f"{word} {name}" for word in ("number", "used") for name in names)), _uses(before, after))
    columns = len(head) - all_start
    return f"{table(head[:columns], [row[:columns] for row in rows])}\n\n{used}"


def _rows(before: Mapping[str, Waits], after: Mapping[str, Waits], prefix: str = "") -> list[Sequence[str]]:
    names = dict.fromkeys((*before, *after))
    return [_row(prefix + name, before.get(name, _NONE), after.get(name, _NONE)) for name in names]


def _row(name: str, before: Waits, after: Waits) -> Sequence[str]:
    pairs = ((before.p50_s, after.p50_s), (before.p95_s, after.p95_s), (before.max_s, after.max_s))
    jobs = _two(before.jobs + before.unclaimed, after.jobs + after.unclaimed)
    return name, jobs, *(seconds(each) for pair in pairs for each in pair), _two(before.unclaimed, after.unclaimed)


def _two(before: int, after: int) -> str:
    return f"{after:,}" if before == after else f"{before:,} -> {after:,}"


def seconds(wait_s: float | None) -> str:
    """Return a wait in words, in milliseconds if it is short."""
    if wait_s is None:
        return "-"
    return f"{wait_s * 1000:.0f} ms" if wait_s < 0.1 else duration(wait_s)


def _uses(before: WaitReport, after: WaitReport) -> list[Sequence[str]]:
    ours, theirs = ({each.types: each for each in report.slots} for report in (before, after))
    return [_use(types, ours.get(types), theirs.get(types)) for types in dict.fromkeys((*ours, *theirs))]


def _use(types: Sequence[str], before: SlotUse | None, after: SlotUse | None) -> Sequence[str]:
    numbers = ("-" if each is None else str(each.slots) for each in (before, after))
    shares = ("-" if each is None else f"{each.share:.0%}" for each in (before, after))
    return f"[{','.join(types)}]", *numbers, *shares
