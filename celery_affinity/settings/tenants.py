"""Parse and format ``affinity_tenants``: the quota of each tenant.

The setting has three forms:
- ``app.conf``: ``{"acme": Tenant(max=10, min=2), "*": Tenant(max=20)}``, name -> quota. ``*`` stands for each tenant
  without an entry. ``""`` is the name of jobs without a tenant: they have only a weight.
- typed and shown: ``acme=max:10,min:2 *=max:20``, or ``none``.
- Redis: the same, with the names encoded like keys. A ``*`` in a tenant's name is encoded.

Server functions read the setting with ``lua/keys/capacity.lua``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from ..errors import OptionError, refuse
from ..options.key_templates import NamedKey
from ..schema import values
from ..schema.constants import MAX_KEY_LENGTH, MAX_NUMBER_LENGTH, TENANT_PREFIX
from ..schema.values import COUNT_OR_0, MAX_COUNT, encode_part, is_whole
from .limits import NONE

#: Maximum weight of a tenant.
MAX_WEIGHT = 999_999

#: Name that stands for each tenant without an entry.
OTHERS = "*"
#: The empty name in the typed form and in Redis: jobs without a tenant.
EMPTY = '""'

ACCEPTED = (
    "quotas by tenant such as {'acme': Tenant(max=10, min=2), '*': Tenant(max=20)}, at run time "
    "'acme=max:10,min:2 *=max:20' or 'none': the name of each tenant, or '*' for all others, and whole numbers, up to "
    f"{MAX_COUNT:,}; for jobs without a tenant, '', only a weight"
)

_NUMBER = rf"[0-9]{{1,{MAX_NUMBER_LENGTH}}}"
_WORD = re.compile(rf"([^\s,]+)=max:({_NUMBER}|{NONE})(?:,min:({_NUMBER}))?(?:,weight:([1-9][0-9]{{0,5}}))?")


@dataclass(frozen=True)
class Tenant(NamedKey):
    """The quota of a tenant. *max*: maximum number of its jobs that run at the same time in the fleet, or None.

    *min*: while fewer of its jobs run, its waiting jobs run before the jobs of all tenants that have reached their
    minimum, regardless of priority. Other tenants use its free slots, and return them as their jobs end. *weight*:
    share of the slot time relative to the weights of the other waiting tenants, with ``affinity_tenant_turns="share"``:
    1 to 999,999. Raises OptionError (a ValueError) for invalid values.
    """

    max: int | None = None
    min: int = 0
    weight: int = 1

    def __post_init__(self) -> None:
        if self.max is not None and (accepted := COUNT_OR_0(self.max)) is not None:
            raise refuse("max of a tenant", f"None, or {accepted}", self.max)
        if (accepted := COUNT_OR_0(self.min)) is not None:
            raise refuse("min of a tenant", accepted, self.min)
        if self.max is not None and self.min > self.max:
            raise refuse("min of a tenant", f"a whole number up to its max, {self.max}", self.min)
        if not is_whole(self.weight) or not 0 < self.weight <= MAX_WEIGHT:
            raise refuse("weight of a tenant", f"a whole number from 1 to {MAX_WEIGHT:,}", self.weight)


def check_tenants(value: object) -> str | None:
    """Return None if *value*, a mapping or a typed string, is valid. Otherwise return the accepted values as text."""
    quotas = typed_tenants(value) if isinstance(value, str) else value
    return None if isinstance(quotas, Mapping) and all(map(_is_good, quotas, quotas.values())) else ACCEPTED


def _is_good(name: object, quota: object) -> bool:
    if (
        not isinstance(name, str)
        or not (name == "" or values.is_pattern(name))
        or len(TENANT_PREFIX + encode_part(name)) > MAX_KEY_LENGTH
    ):
        return False
    try:
        own = as_tenant(quota)
    except OptionError:
        return False
    return name != "" or (own.max is None and own.min == 0)


def as_tenant(value: object) -> Tenant:
    """Return *value*, a Tenant or a mapping of its fields, as a Tenant. Raises OptionError."""
    if isinstance(value, Tenant):
        return value
    if not isinstance(value, Mapping):
        raise refuse("a quota of a tenant", "a Tenant, such as Tenant(max=10)", value)
    return Tenant(**value)


def typed_tenants(text: str) -> dict[str, Tenant] | None:
    """Return the quotas in *text*, in typed or Redis form, or None if *text* is invalid."""
    words = [] if text.strip() in ("", NONE) else text.split()
    matches = [_WORD.fullmatch(word) for word in words]
    if None in matches:
        return None
    try:
        return {_decoded(match[1]): _quota(match) for match in matches if match is not None}
    except OptionError:  # a min above its max
        return None


def _decoded(name: str) -> str:
    return "" if name == EMPTY else name if name == OTHERS else unquote(name)


def _quota(word: re.Match[str]) -> Tenant:
    """Return the quota in *word*. Raises OptionError."""
    _, max_jobs, min_jobs, weight = word.groups()
    return Tenant(max=None if max_jobs == NONE else int(max_jobs), min=int(min_jobs or 0), weight=int(weight or 1))


def shown_tenants(value: Mapping[str, Tenant] | str) -> str:
    """Return valid quotas in typed form."""
    return _words(value, values.shown_pattern) or NONE


def encoded_tenants(value: Mapping[str, Tenant] | str) -> str:
    """Return valid quotas in Redis form, or "" if there are none."""
    return _words(value, lambda name: name if name == OTHERS else encode_part(name))


def _words(value: Mapping[str, Tenant] | str, encode: Callable[[str], str]) -> str:
    quotas = typed_tenants(value) or {} if isinstance(value, str) else value
    return " ".join(
        f"{encode(name) if name else EMPTY}={_format_quota(as_tenant(quotas[name]))}" for name in sorted(quotas)
    )


def _format_quota(quota: Tenant) -> str:
    minimum = f",min:{quota.min}" if quota.min else ""
    weight = f",weight:{quota.weight}" if quota.weight != 1 else ""
    return f"max:{NONE if quota.max is None else quota.max}{minimum}{weight}"


def quotas_in(text: str) -> dict[str, Tenant]:
    """Return tenant (encoded) -> quota of *text*, the setting in Redis."""
    return {word[1]: _quota(word) for word in map(_WORD.fullmatch, text.split()) if word}


def maximum_of(key: str, text: str) -> int | None:
    """Return the maximum number of running jobs of a tenant, or None if unlimited.

    *key*: the encoded tenant key, with its prefix. *text*: the setting in Redis.
    """
    return _quota_of(key, text).max


def minimum_of(key: str, text: str) -> int:
    """Return the guaranteed slots of a tenant with jobs, 0 if none. Arguments: see `maximum_of`."""
    return _quota_of(key, text).min


def weight_of(key: str, text: str) -> int:
    """Return the weight of a tenant in fair shares. Arguments: see `maximum_of`."""
    return _quota_of(key, text).weight


def _quota_of(key: str, text: str) -> Tenant:
    quotas = quotas_in(text)
    name = key.removeprefix(TENANT_PREFIX)
    return quotas.get(name, quotas.get(OTHERS, Tenant())) if name else quotas.get(EMPTY, Tenant())
