"""The rules of a traced job, as a message would say them. A trace has hashes in place of keys."""

from collections.abc import Iterable

from ..errors import OptionError
from ..rules.encoding import encode
from ..rules.keyed.key_rules import Exclusive, Rate, TenantKey, as_said
from ..rules.merging import Merge
from ..rules.rule_texts import joined
from .scenario import Arrival


def text_of(arrival: Arrival) -> str:
    """Return the field ``rules`` of the job of *arrival*. Raises OptionError, which names the job, for no limit."""
    try:
        parts = [_merge(arrival), _rate(arrival), _exclusive(arrival), _tenant(arrival)]
    except (OptionError, ValueError) as exc:
        raise OptionError(f"job {arrival.number} of the trace: {exc}") from exc
    return joined(*parts)


def has_time(arrival: Arrival) -> bool:
    """Return whether the job of *arrival* has rules by which it may start at a time when nothing else happens."""
    return not (arrival.rate is arrival.exclusive is arrival.merge is arrival.tenant is None)


def _merge(arrival: Arrival) -> str:
    return "" if arrival.merge is None else Merge("k", keep="last").text(arrival.merge)


def _rate(arrival: Arrival) -> str:
    if arrival.rate is None:
        return ""
    return Rate(as_said(arrival.rate_limit or ""), "k").text(arrival.rate)


def _exclusive(arrival: Arrival) -> str:
    """Return the part of an exclusive key. That of a closed one says 1: the setting of limits says 0."""
    if arrival.exclusive is None:
        return ""
    return Exclusive("k", limit=limit_in(arrival.exclusive_limit) or 1).text(arrival.exclusive)


def limit_in(stated: str | None) -> int:
    """Return how many jobs of an exclusive key may run at a time by what its task states; 0: it is closed."""
    limit = stated or "1"
    if not limit.isdecimal():
        raise OptionError(f"exclusive_limit must be a whole number, 0 or more, got: {limit!r}")
    return int(limit)


def closed_keys(arrivals: Iterable[Arrival]) -> list[str]:
    """Return the words of the setting of limits, as Redis has it, that say which exclusive keys are closed."""
    closed = {each.exclusive for each in arrivals if each.exclusive is not None and each.exclusive_limit == "0"}
    return [f"{encode(key)}=0" for key in sorted(closed)]


def _tenant(arrival: Arrival) -> str:
    return "" if arrival.tenant is None else TenantKey("k").text(arrival.tenant)
