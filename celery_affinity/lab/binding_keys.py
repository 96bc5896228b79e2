"""The keys of a job that may keep it back, with their limits: those of settings, or else those that its task states."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ..errors import OptionError
from ..rules.encoding import encode
from ..rules.keyed.key_limits import limit_set, rate_set
from ..rules.keyed.key_rules import as_said, as_stated, is_rate
from ..rules.protocol import RATE_PREFIX, TENANT_PREFIX
from ..rules.rule_texts import StatedRate, rate_in
from ..rules.tenants import max_of
from .job_rules import limit_in
from .scenario import Arrival


class BindingKey(NamedTuple):
    """A key, encoded, and how many jobs may hold it, or start in a period."""

    name: str
    limit: int | StatedRate


class KeySettings(NamedTuple):
    """What the settings `limits` and `tenants`, as Redis has them, say of keys."""

    limits: str
    tenants: str

    def of(self, arrival: Arrival) -> Sequence[BindingKey]:
        """Return the keys that may keep *arrival* back. Raises OptionError, which names the job, for a bad limit."""
        if arrival.exclusive is arrival.rate is arrival.tenant is None:
            return ()
        try:
            return (
                *_exclusive(self.limits, arrival.exclusive, arrival.exclusive_limit),
                *_rate(self.limits, arrival.rate, arrival.rate_limit),
                *_tenant(self.tenants, arrival.tenant),
            )
        except OptionError as exc:
            raise OptionError(f"job {arrival.number} of the trace: {exc}") from exc


@lru_cache(maxsize=100_000)
def _exclusive(limits: str, key: str | None, stated: str | None) -> Sequence[BindingKey]:
    if key is None:
        return ()
    given = limit_set(encode(key), limits)
    return (BindingKey(encode(key), limit_in(stated) if given is None else given),)


@lru_cache(maxsize=100_000)
def _rate(limits: str, key: str | None, stated: str | None) -> Sequence[BindingKey]:
    if key is None:
        return ()
    name, said = RATE_PREFIX + encode(key), as_said(stated or "")
    rate = rate_in(as_stated(said)) if is_rate(said) else None
    if rate is None:
        raise OptionError(f"rate_limit must be a whole number above 0 for each s, m or h, got: {said!r}")
    return (BindingKey(name, rate_set(name, limits) or rate),)


@lru_cache(maxsize=100_000)
def _tenant(tenants: str, name: str | None) -> Sequence[BindingKey]:
    """Return the key of a tenant with a maximum: one without keeps nobody back."""
    most = None if name is None else max_of(TENANT_PREFIX + encode(name), tenants)
    return () if name is None or most is None else (BindingKey(TENANT_PREFIX + encode(name), most),)
