"""The output of ``celery affinity tenants`` for people."""

from collections.abc import Mapping, Sequence

from ..observe.keyed.facts import Key
from ..observe.keyed.in_use import Found
from ..observe.keyed.tenants import TenantStatus
from ..rules.tenants import NONE, OTHERS, Tenant
from .words import by_cohort, duration, many, table


def tenants(found: Found) -> str:
    """Return tenants as a table, and whether there may be more."""
    if not found.keys and found.are_all:
        return "no job of such a tenant runs or waits"
    rows = [
        (
            each.tenant or "",
            str(each.minimum or "-"),
            _max(each),
            str(each.held),
            str(each.waiting),
            _duration(each.oldest_wait_s),
        )
        for each in found.keys
    ]
    shown = by_cohort(found.keys, ("tenant", "min", "max", "slots", "waiting", "oldest wait"), rows)
    return shown if found.are_all else f"{shown}\n\nthere may be more: give a PATTERN, or a higher --limit"


def at_a_glance(found: Sequence[TenantStatus]) -> str:
    """Return tenants as a table, for the report on the fleet."""
    return by_cohort(
        found,
        ("tenant", "slots", "min", "max", "weight", "waiting", "oldest wait", ""),
        [
            (
                each.name,
                str(each.held),
                str(each.minimum or "-"),
                "-" if each.limit is None else str(each.limit),
                str(each.weight),
                str(each.waiting),
                _duration(each.oldest_wait_s),
                _note(each),
            )
            for each in found
        ],
    )


def _note(each: TenantStatus) -> str:
    if each.is_below_minimum:
        stops = f", {many(each.preempting, 'job')} of others being stopped" if each.preempting else ""
        return f"below its minimum: its jobs go first{stops}"
    return "at its maximum" if each.is_at_maximum else ""


def quotas(found: Mapping[str, Tenant], conf: Mapping[str, Tenant]) -> str:
    """Return a table of the quotas in force beside those of ``app.conf``; "*", for tenants without a name, is last."""
    if not found and not conf:
        return "no quota is set: each tenant may have any number of slots"
    names = sorted({*found, *conf}, key=lambda name: (name == OTHERS, name))
    return table(
        ("tenant", "quota in force", "app.conf"), [(each, _said(found, each), _said(conf, each)) for each in names]
    )


def _said(quotas: Mapping[str, Tenant], name: str) -> str:
    if name not in quotas:
        return "-"
    quota = quotas[name]
    least = f", min {quota.min}" if quota.min else ""
    weight = f", weight {quota.weight}" if quota.weight != 1 else ""
    return f"{NONE if quota.max is None else quota.max}{least}{weight}"


def _max(each: Key) -> str:
    return "-" if each.limit is None else str(each.limit)


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)
