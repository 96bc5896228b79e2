"""What each tenant may use of the fleet: ``affinity_tenants``, in its three forms.

- in an app.conf: ``{"acme": Tenant(max=10, min=2), "*": Tenant(max=20)}``, name -> quota; ``*`` stands for each tenant
  that is not named;
- as somebody types it, and as it is shown: ``acme=max:10,min:2 *=max:20``, and ``none`` for none;
- in Redis: likewise, with the names encoded as keys are; a ``*`` that is a name's own is encoded.

Arrows read the setting by ``lua/keys/tenants.lua``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from ..errors import OptionError, refuse
from ..options.key_templates import NamedKey
from ..schema import values
from ..schema.constants import LONGEST_KEY, LONGEST_NUMBER, TENANT_PREFIX
from ..schema.values import COUNT_OR_0, MOST_COUNT, encode_part, is_whole

#: The largest weight of a tenant.
MOST_WEIGHT = 999_999

#: What stands for no quotas where somebody reads or types them.
NONE = "none"

#: What stands for each tenant that is not named.
OTHERS = "*"

ACCEPTED = (
    "quotas by tenant such as {'acme': Tenant(max=10, min=2), '*': Tenant(max=20)}, at run time "
    "'acme=max:10,min:2 *=max:20' or 'none': the name of each tenant, or '*' for all others, and whole numbers, up to "
    f"{MOST_COUNT:,}"
)

_NUMBER = rf"[0-9]{{1,{LONGEST_NUMBER}}}"
_WORD = re.compile(rf"([^\s,]+)=max:({_NUMBER}|{NONE})(?:,min:({_NUMBER}))?(?:,weight:([1-9][0-9]{{0,5}}))?")


@dataclass(frozen=True)
class Tenant(NamedKey):
    """The quota of a tenant. *max*: at most so many of its jobs run at a time in the fleet; None: any number.

    *min*: while fewer of its jobs run, those that wait go before the jobs of all tenants that have their minimum,
    whatever the priority. Slots that the tenant does not use go to others, and come back as their jobs end.
    *weight*: with ``affinity_tenant_turns = "share"``, the tenant's part of the time of slots, beside the weights of
    the other tenants that wait: 1 to 999,999. Raises OptionError (a ValueError) for anything else.
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
        if not is_whole(self.weight) or not 0 < self.weight <= MOST_WEIGHT:
            raise refuse("weight of a tenant", f"a whole number from 1 to {MOST_WEIGHT:,}", self.weight)


def check_tenants(value: object) -> str | None:
    """Return None if *value* can be the setting, as a mapping or as somebody types it; else what is accepted."""
    quotas = typed_tenants(value) if isinstance(value, str) else value
    return None if isinstance(quotas, Mapping) and all(map(_is_good, quotas, quotas.values())) else ACCEPTED


def _is_good(name: object, quota: object) -> bool:
    if not isinstance(name, str) or not values.is_pattern(name) or len(TENANT_PREFIX + encode_part(name)) > LONGEST_KEY:
        return False
    try:
        as_tenant(quota)
    except OptionError:
        return False
    return True


def as_tenant(value: object) -> Tenant:
    """Return the quota that *value* says: a Tenant, or a mapping of its fields. Raises OptionError."""
    if isinstance(value, Tenant):
        return value
    if not isinstance(value, Mapping):
        raise refuse("a quota of a tenant", "a Tenant, such as Tenant(max=10)", value)
    return Tenant(**value)


def typed_tenants(text: str) -> dict[str, Tenant] | None:
    """Return the quotas that *text* says, as somebody types them or as Redis has them; None if it says none."""
    words = [] if text.strip() in ("", NONE) else text.split()
    found = [_WORD.fullmatch(word) for word in words]
    if None in found:
        return None
    try:
        return {OTHERS if word[1] == OTHERS else unquote(word[1]): _quota(word) for word in found if word is not None}
    except OptionError:  # a min above its max
        return None


def _quota(word: re.Match[str]) -> Tenant:
    """Return the quota that *word* says. Raises OptionError."""
    _, most, least, weight = word.groups()
    return Tenant(max=None if most == NONE else int(most), min=int(least or 0), weight=int(weight or 1))


def shown_tenants(value: Mapping[str, Tenant] | str) -> str:
    """Return quotas that `check` accepts as somebody would type them."""
    return _words(value, values.shown_pattern) or NONE


def encoded_tenants(value: Mapping[str, Tenant] | str) -> str:
    """Return quotas that `check` accepts as Redis has them; "" for none."""
    return _words(value, lambda name: OTHERS if name == OTHERS else encode_part(name))


def _words(value: Mapping[str, Tenant] | str, spelled: Callable[[str], str]) -> str:
    quotas = typed_tenants(value) or {} if isinstance(value, str) else value
    return " ".join(f"{spelled(name)}={_said(as_tenant(quotas[name]))}" for name in sorted(quotas))


def _said(quota: Tenant) -> str:
    least = f",min:{quota.min}" if quota.min else ""
    weight = f",weight:{quota.weight}" if quota.weight != 1 else ""
    return f"max:{NONE if quota.max is None else quota.max}{least}{weight}"


def quotas_in(text: str) -> dict[str, Tenant]:
    """Return the quotas by tenant, encoded, that the setting's *text* in Redis says."""
    return {word[1]: _quota(word) for word in map(_WORD.fullmatch, text.split()) if word}


def maximum_of(key: str, text: str) -> int | None:
    """Return how many jobs of a tenant may run, by the setting's *text* in Redis; None: any number.

    *key*: that of the tenant, encoded, with its prefix.
    """
    return _of(key, text).max


def minimum_of(key: str, text: str) -> int:
    """Return how many slots a tenant has at least while it has jobs; 0: no minimum. Arguments as of `max_of`."""
    return _of(key, text).min


def weight_of(key: str, text: str) -> int:
    """Return the weight of a tenant in shares. Arguments as of `max_of`."""
    return _of(key, text).weight


def _of(key: str, text: str) -> Tenant:
    found = quotas_in(text)
    return found.get(key.removeprefix(TENANT_PREFIX), found.get(OTHERS, Tenant()))
