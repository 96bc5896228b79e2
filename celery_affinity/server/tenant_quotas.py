"""Quotas of tenants at run time: entries of the setting ``tenants``, which has all of them as one text."""

from collections.abc import Mapping
from dataclasses import asdict

from ..rules import tenants
from ..rules.settings import Settings
from ..rules.tenants import Tenant
from . import runtime_settings
from .scheduler import Scheduler

_TENANTS = "tenants"

Quotas = Mapping[str, Tenant]


def read(scheduler: Scheduler, own: Settings) -> tuple[Quotas, Quotas]:
    """Return the quotas in force by tenant, and those of the app.conf that a reset goes back to."""
    (found,) = (each for each in runtime_settings.read(scheduler, own) if each.name == _TENANTS)
    return tenants.typed(str(found.value)) or {}, tenants.typed(str(found.conf)) or {}


def change(scheduler: Scheduler, own: Settings, name: str, fields: Mapping[str, int | None]) -> Quotas:
    """Change *fields* of the quota of the tenant *name*, or of ``*``. Return the quotas in force then.

    Fields that are not given stay as they are. Raises OptionError for values that no quota has, SettingError for a
    name that no tenant has.
    """
    found, _ = read(scheduler, own)
    quota = tenants.as_tenant({**asdict(found.get(name, Tenant())), **fields})
    runtime_settings.change(scheduler, own, {_TENANTS: tenants.shown({**found, name: quota})})
    return read(scheduler, own)[0]


def reset(scheduler: Scheduler, own: Settings, name: str) -> bool:
    """Put app.conf's quota of *name* in force again, or that of ``*``. Return whether there was a quota of *name*."""
    found, conf = read(scheduler, own)
    if name not in found.keys() | conf.keys():
        return False
    runtime_settings.reset_entry(scheduler, own, _TENANTS, name, found=found, conf=conf, shown=tenants.shown)
    return True
