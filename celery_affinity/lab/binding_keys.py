"""The keys of a job that may keep it back, with their limits: those of settings, or else those that its task states."""

from typing import NamedTuple

from ..errors import OptionError
from ..rules.keyed.key_limits import limit_set, rate_set
from ..rules.keyed.key_rules import as_said, as_stated, is_rate
from ..rules.protocol import RATE_PREFIX, TENANT_PREFIX
from ..rules.redis_keys import encode
from ..rules.rule_texts import StatedRate, rate_in
from ..rules.tenants import max_of
from .job_rules import limit_of
from .scenario import Arrival


class BindingKey(NamedTuple):
    """A key, encoded, and how many jobs may hold it, or start in a period."""

    name: str
    limit: int | StatedRate


class KeySettings(NamedTuple):
    """What the settings `limits` and `tenants`, as Redis has them, say of keys."""

    limits: str
    tenants: str

    def of(self, arrival: Arrival) -> list[BindingKey]:
        """Return the keys that may keep *arrival* back. Raises OptionError, which names the job, for a bad limit."""
        try:
            found = (self._exclusive(arrival), self._rate(arrival), self._tenant(arrival))
        except OptionError as exc:
            raise OptionError(f"job {arrival.number} of the trace: {exc}") from exc
        return [each for each in found if each is not None]

    def _exclusive(self, arrival: Arrival) -> BindingKey | None:
        if arrival.exclusive is None:
            return None
        name = encode(arrival.exclusive)
        given = limit_set(name, self.limits)
        return BindingKey(name, limit_of(arrival) if given is None else given)

    def _rate(self, arrival: Arrival) -> BindingKey | None:
        if arrival.rate is None:
            return None
        name, said = RATE_PREFIX + encode(arrival.rate), as_said(arrival.rate_limit or "")
        stated = rate_in(as_stated(said)) if is_rate(said) else None
        if stated is None:
            raise OptionError(f"rate_limit must be a whole number above 0 for each s, m or h, got: {said!r}")
        return BindingKey(name, rate_set(name, self.limits) or stated)

    def _tenant(self, arrival: Arrival) -> BindingKey | None:
        if arrival.tenant is None:
            return None
        name = TENANT_PREFIX + encode(arrival.tenant)
        most = max_of(name, self.tenants)
        return None if most is None else BindingKey(name, most)
