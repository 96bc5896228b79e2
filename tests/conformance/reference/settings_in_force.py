"""The settings in force, in plain Python; the Lua of ``lua/base/settings.lua`` must equal it.

A new value in an app.conf applies. A change at run time applies until a reset, or until app.conf's own value changes.
Settings have their names in Redis, as in `shared_settings`.
"""

from collections.abc import Mapping

from celery_affinity.policy.score import Weights
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import DEFAULTS, FOR_A_CLAIM, shared_settings, weights_of

_DEFAULTS = shared_settings(Settings())


class InForce:
    """The settings of a cohort."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        """Settings that count; all others have their default."""
        self.conf: dict[str, str] = {}
        """Settings as an app.conf said them last: a change at run time stands in `values` alone."""
        self.conf_of: dict[str, dict[str, str]] = {}
        """App -> settings as its own app.conf said them last."""
        self.revision = 0
        """Grows with each change."""
        self.for_claims = ""
        """What a claim needs, as it was at the last change, of settings or of workers; in Redis the time follows."""
        self.limits_revision = 0
        """Grows with each change of the limits of keys."""

        self.shares_era = 0
        """Grows each time that tenants begin, or cease, to go by shares, or with another half-life."""
        self.half_life_us: int | None = None
        """Time in which what tenants have used comes to count half, 0 for never; None while they go by age."""

    def get(self, name: str) -> str:
        return self.values.get(name, _DEFAULTS[name])

    @property
    def weights(self) -> Weights:
        return weights_of(self.values)

    def adopt(self, app: str, given: Mapping[str, str]) -> list[str]:
        """Adopt the app.conf of *app*. Return the settings that another app, or version of it, had changed.

        A change of its own value ends a change at run time; the first values of an unknown app do not.
        """
        own = self.conf_of.get(app, {})
        replaced, changed = [], False
        for name, value in given.items():
            last = self.conf.get(name)
            if own[name] != value if name in own else last != value:
                if name in own or self.values.get(name) == last:
                    self._put(name, value)
                self.conf[name] = value
                changed = True
                if last not in (None, value):
                    replaced.append(name)
        self.conf_of[app] = {**own, **given}
        if changed:
            self._record_change()
        return replaced

    def change(self, changes: Mapping[str, str]) -> int:
        """Change settings at run time; "" resets one to the last value in app.conf. Return the revision."""
        for name, value in changes.items():
            self._put(name, value or self.conf.get(name))
        return self._record_change()

    def _put(self, name: str, value: str | None) -> None:
        """Write a setting; None means its default."""
        if name == "limits":
            self.limits_revision += _of_keys(self.values.get(name)) != _of_keys(value)
        if name == "tenants":
            self.limits_revision += (self.values.get(name) or "") != (value or "")
        if value is None:
            self.values.pop(name, None)
        else:
            self.values[name] = value

    def _record_change(self) -> int:
        """Count a change. Jobs carry priorities in their app's order; a change of the order reverses all."""
        own = self.conf.get("priority_order", _DEFAULTS["priority_order"])
        self.values["priority_reversed"] = str(int(self.get("priority_order") != own))
        half_life_us = int(self.get("tenant_half_life_us")) if self.get("tenant_turns") == "share" else None
        if half_life_us != self.half_life_us:
            self.half_life_us = half_life_us
            self.shares_era += 1
            self.limits_revision += 1
        self.revision += 1
        self.renew_for_claims()
        return self.revision

    def renew_for_claims(self) -> None:
        """Update the data for claims after a change of settings or slots."""
        counted = {**DEFAULTS, **self.values}
        self.for_claims = " ".join(counted[name] for name in FOR_A_CLAIM)


def _of_keys(limits: str | None) -> list[str]:
    """Return the part of the setting ``limits`` that concerns keys."""
    return [word for word in (limits or "").split() if not word.startswith("type%3A")]
