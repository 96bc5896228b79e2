"""The output of ``celery affinity tenants`` for people."""

from collections.abc import Mapping

from ..observe.keyed.facts import Key
from ..observe.keyed.in_use import Found
from ..rules.tenants import NONE, OTHERS, Tenant
from .words import duration, table


def tenants(found: Found) -> str:
    """Return tenants as a table, and whether there may be more."""
    if not found.keys and found.are_all:
        return "no job of such a tenant runs or waits"
    rows = [(each.tenant or "", _max(each), str(each.held), str(each.waiting), _wait(each)) for each in found.keys]
    shown = table(("tenant", "max", "slots", "waiting", "oldest wait"), rows)
    return shown if found.are_all else f"{shown}\n\nthere may be more: give a PATTERN, or a higher --limit"


def quotas(found: Mapping[str, Tenant], conf: Mapping[str, Tenant]) -> str:
    """Return the quotas in force as a table, with those of app.conf; that of all others last."""
    if not found and not conf:
        return "no quota is set: each tenant may have any number of slots"
    names = sorted({*found, *conf}, key=lambda name: (name == OTHERS, name))
    return table(
        ("tenant", "quota in force", "app.conf"), [(each, _said(found, each), _said(conf, each)) for each in names]
    )


def _said(quotas: Mapping[str, Tenant], name: str) -> str:
    if name not in quotas:
        return "-"
    most = NONE if quotas[name].max is None else str(quotas[name].max)
    return most if quotas[name].weight == 1 else f"{most}, weight {quotas[name].weight}"


def _max(each: Key) -> str:
    return "-" if each.limit is None else str(each.limit)


def _wait(each: Key) -> str:
    return "-" if each.oldest_wait_s is None else duration(each.oldest_wait_s)
