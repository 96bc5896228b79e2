"""The rules of a traced job, as a message would say them. A trace has hashes in place of keys."""

from ..errors import OptionError
from ..rules.keyed.key_limits import one_typed
from ..rules.keyed.key_rules import Exclusive, Rate, TenantKey
from ..rules.merging import Merge
from ..rules.rule_texts import joined, with_share
from .scenario import Arrival


def text_of(arrival: Arrival, *, has_shares: bool) -> str:
    """Return the field ``rules`` of the job of *arrival*. *has_shares*: tenants go by shares.

    Raises OptionError, which names the job, for a limit that is none.
    """
    try:
        parts = [_merge(arrival), _rate(arrival), _exclusive(arrival), _tenant(arrival)]
    except (OptionError, ValueError) as exc:
        raise OptionError(f"job {arrival.number} of the trace: {exc}") from exc
    text = joined(*parts)
    return with_share(text) if has_shares else text


def has_time(arrival: Arrival) -> bool:
    """Return whether the job of *arrival* has rules by which it may start at a time when nothing else happens."""
    return not (arrival.rate is arrival.exclusive is arrival.merge is arrival.tenant is None)


def _merge(arrival: Arrival) -> str:
    return "" if arrival.merge is None else Merge("k", keep="last").text(arrival.merge)


def _rate(arrival: Arrival) -> str:
    return "" if arrival.rate is None else Rate(arrival.rate_limit or "", "k").text(arrival.rate)


def _exclusive(arrival: Arrival) -> str:
    if arrival.exclusive is None:
        return ""
    return Exclusive("k", limit=_number(arrival.exclusive_limit or "1")).text(arrival.exclusive)


def _number(limit: str) -> int:
    found = one_typed(limit)
    if not isinstance(found, int):
        raise OptionError(f"exclusive_limit must be a whole number, 1 or more, got: {limit!r}")
    return found


def _tenant(arrival: Arrival) -> str:
    return "" if arrival.tenant is None else TenantKey("k").text(arrival.tenant)
