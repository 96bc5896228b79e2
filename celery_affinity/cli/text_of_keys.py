"""The output of ``celery affinity keys`` for people."""

from collections.abc import Mapping

from ..clock import SECOND_US
from ..observe.keyed.facts import Holder, Key
from ..observe.keyed.in_use import Found, KeyDetails
from ..rules.addresses import type_address
from ..rules.keyed.key_limits import Limit
from ..rules.patterns import precedence
from .words import by_cohort, duration, many, mode, moment, paragraph, table


def keys(found: Found) -> str:
    """Return keys as a table, and whether there are more; then the types that have a limit."""
    parts = [_keys(found)]
    if found.types:
        rows = [
            (type_address(each.type), str(each.limit), str(each.running), str(each.waiting)) for each in found.types
        ]
        parts.append(by_cohort(found.types, ("limit of a type", "limit", "running", "waiting"), rows))
    return "\n\n".join(parts)


def _keys(found: Found) -> str:
    if not found.keys and found.are_all:
        return "no job holds such a key or waits for one"
    rows = [
        (each.key, _limit(each), str(each.held), str(each.waiting), _wait(each), _held_by(each)) for each in found.keys
    ]
    shown = by_cohort(found.keys, ("key", "limit", "held", "waiting", "oldest wait", "held by"), rows)
    return shown if found.are_all else f"{shown}\n\nthere may be more: give a PATTERN, or a higher --limit"


def key(shown: KeyDetails) -> str:
    """Return the limit of one key, its holders, and the jobs that wait for it, as a few lines."""
    found = shown.key
    groups = [
        f"{each.jobs} of {each.type} priority {each.priority}, {mode(each.on_demand)}"
        + ("" if each.kept_back else "; the first may start")
        for each in shown.waiting
    ]
    more = [f"and {found.held - len(shown.holders)} more"] if found.held > len(shown.holders) else []
    rows = [
        ("key", found.key),
        ("limit", f"{_limit(found)} in force"),
        *_numbered("declared", [f"{_stated(text)} by {task}" for task, text in shown.stated.items()]),
        *_numbered("held", [*map(_holder, shown.holders), *more] or ["by no job"]),
        *([("reserved", _reserved(found))] if found.kept_for else []),
        *([("reserved", f"for type {found.turn}, which has waited longest")] if found.turn else []),
        *_numbered("waiting", groups or ["no job"]),
        ("oldest wait", _wait(found)),
    ]
    return paragraph(rows)


def limits(found: Mapping[str, Limit], conf: Mapping[str, Limit]) -> str:
    """Return the limits in force as a table, with those of app.conf: the first that matches a key counts."""
    if not found and not conf:
        return "no limit is set; the tasks' own limits count"
    said = sorted({*found, *conf}, key=precedence)
    rows = [(each, str(found.get(each, "-")), str(conf.get(each, "-"))) for each in said]
    return table(("pattern", "limit in force", "app.conf"), rows)


def _reserved(each: Key) -> str:
    due = "" if each.kept_until_s is None else f", which is due at {moment(each.kept_until_s)}"
    return f"for the retry of {each.kept_for}{due}"


def _limit(each: Key) -> str:
    if each.starts:
        return f"{each.starts.most} in {duration(each.starts.period_s)}"
    return "-" if each.limit is None else str(each.limit)


def _stated(text: str) -> str:
    starts, slash, period_us = text.partition("/")
    return f"{starts} in {duration(int(period_us) / SECOND_US)}" if slash and period_us.isdecimal() else text


def _wait(each: Key) -> str:
    return "-" if each.oldest_wait_s is None else duration(each.oldest_wait_s)


def _held_by(each: Key) -> str:
    if each.holder is None:
        return "-"
    return _holder(each.holder) + (f" and {many(each.held - 1, 'other')}" if each.held > 1 else "")


def _holder(each: Holder) -> str:
    return f"{each.task_id} ({each.task}) on {each.worker} for {duration(each.held_s)}"


def _numbered(name: str, lines: list[str]) -> list[tuple[str, str]]:
    return [(name if number == 0 else "", line) for number, line in enumerate(lines)]
