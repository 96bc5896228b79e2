"""An operator who pauses types and keys, and sets limits, reserves and quotas of tenants, while jobs run.

Each change is noted with the last fencing token, since all later claims have higher tokens.
"""

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

import redis

from celery_affinity import Exclusive
from celery_affinity.publishing.app_config import settings_of
from celery_affinity.reports.type_limits import pause_address, pauses_in_force
from celery_affinity.scheduler import runtime_settings
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys, Kind
from celery_affinity.settings import limits, tenants

from .app import RULES, TENANTS, TYPES, app, quota_of
from .hints import PREFERENCES
from .ledger import Ledger
from .servers import DurableServer, ReplicatedServers

T = TypeVar("T")

#: Targets of pauses: each type, each key (with a prefix for rates), everything.
PAUSABLE: tuple[tuple[Kind, str], ...] = (
    ("all", ""),
    *(("type", each) for each in TYPES),
    *(("key", rule.key if isinstance(rule, Exclusive) else f"rate:{rule.key}") for rule in RULES),
    *(("key", f"tenant:{name}") for name in TENANTS),
)
LIMITED_KEYS = tuple(rule.key for rule in RULES if isinstance(rule, Exclusive))

#: Max seconds for which a server may be down.
_ANSWERS_S = 20

#: A pause is surely in force until this many seconds before its expiry.
_SURE_S = 0.05


class Operator:
    """Changes pauses, limits and reserves on *server*, and notes each change in *ledger*."""

    def __init__(self, ledger: Ledger, server: DurableServer | ReplicatedServers) -> None:
        self._ledger, self._server = ledger, server
        self._until: dict[str, float] = {}
        self._ending: set[str] = set()
        self._limits: dict[str, int] = {}
        self._reserves: dict[str, str] = {}
        self._quotas = dict(TENANTS)
        self._has_changed = False

    def pause(self, kind: Kind, name: str, for_s: float | None = None) -> Callable[[], None]:
        """Pause a target, with an expiry if *for_s* is set. Return the function that ends the pause.

        For a pause with an expiry, the function only notes until when the pause was surely in force. If the server is
        down, the function raises a redis error without waiting.
        """
        what, began = pause_address(kind, name), monotonic()
        self._has_changed = True
        self._ask(lambda scheduler: scheduler.pause(what, for_s=for_s, why="chaos"))
        self._until[what] = began + for_s if for_s is not None else float("inf")
        self._ledger.note("paused", what, fence=self._fence())
        return lambda: self._end(what)

    def is_paused(self, kind: Kind, name: str) -> bool:
        return pause_address(kind, name) in self._until

    def _end(self, what: str) -> None:
        until, fence = self._until[what], self._fence(within_s=0)
        if what not in self._ending and monotonic() < until - _SURE_S:
            self._ledger.note("resuming", what, fence=fence)
        self._ending.add(what)  # a call without a reply may have ended the pause
        if until == float("inf"):
            self._ask(lambda scheduler: scheduler.resume(what), within_s=0)
        del self._until[what]
        self._ending.discard(what)

    def reserve(self, name: str, amount: str | None) -> None:
        """Set the reserve of a type and a class, such as "pdf:queued", or remove it."""
        self._has_changed = True
        self._reserves = {each: value for each, value in self._reserves.items() if each != name}
        if amount is not None:
            self._reserves[name] = amount
        self._write()

    def limit(self, pattern: str, limit: int | None) -> None:
        """Set or remove the limit of a key, or of "type:" and a type."""
        self._has_changed = True
        self._limits = {key: value for key, value in self._limits.items() if key != pattern}
        if limit is not None:
            self._limits[pattern] = limit
        self._write()

    def quota(self, tenant: str, most: int | None) -> None:
        """Set the maximum of a tenant, or restore the app's maximum."""
        self._has_changed = True
        self._quotas[tenant] = TENANTS[tenant] if most is None else most
        self._write()

    def prefer(self, settings: dict[str, str]) -> None:
        """Change the placement settings."""
        self._has_changed = True
        self._ask(lambda scheduler: runtime_settings.change_settings(scheduler, settings_of(app), settings))

    def calm(self) -> None:
        """End pauses that lost their end with the server's data, and reset all settings."""
        if not self._has_changed:
            return
        for each in self._ask(lambda scheduler: pauses_in_force(scheduler.reader)):
            self._ask(lambda scheduler, each=each: scheduler.resume(pause_address(each.kind, each.name)))
        self._limits, self._reserves, self._quotas = {}, {}, dict(TENANTS)
        self._write()
        names = ["limits", "reserve", "tenants", *PREFERENCES]
        self._ask(lambda scheduler: runtime_settings.reset_settings(scheduler, settings_of(app), names))
        self._has_changed = False

    def _write(self) -> None:
        before, began, text = self._fence(), monotonic(), limits.shown_limits(self._limits)
        reserve = " ".join(f"{name}={amount}" for name, amount in self._reserves.items()) or "none"
        quotas = tenants.shown_tenants({name: quota_of(most) for name, most in self._quotas.items()})
        typed = {"limits": text, "reserve": reserve, "tenants": quotas}
        self._ask(lambda scheduler: runtime_settings.change_settings(scheduler, settings_of(app), typed))
        facts = {"reserve": reserve, "tenants": quotas, "began": began, "before": before}
        self._ledger.note("limits", text, **facts, fence=self._fence())

    def _fence(self, within_s: float = _ANSWERS_S) -> int:
        """Return the last fencing token."""
        return int(self._ask(lambda scheduler: scheduler.client.get(scheduler.keys.key("fence")), within_s) or 0)

    def _ask(self, call: Callable[[Scheduler], T], within_s: float = _ANSWERS_S) -> T:
        """Return the result of *call*, repeated while the server is down for up to *within_s*."""
        until = monotonic() + within_s
        while True:
            try:
                return call(Scheduler(self._server.client, Keys()))
            except (redis.RedisError, OSError):
                if monotonic() > until:
                    raise
                sleep(0.1)
