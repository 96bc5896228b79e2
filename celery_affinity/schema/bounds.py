"""How many jobs of a type may wait: the setting ``affinity_max_pending``, and what becomes of a call beyond that.

The bound of a type travels with each call that the bound concerns, as ``pdf=10000/refuse``; a process without the
setting sends nothing, and its calls count for no bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import SettingError, printable
from . import values
from .values import COUNT, encode_part

REFUSE, DROP_OLDEST, DROP_NEWEST = "refuse", "drop-oldest", "drop-newest"

ACCEPTED = (
    "a mapping of types, in which * stands for any characters, to bounds, such as {'pdf': 10000, 'crawl.*': "
    "Bound(5000, full='drop-oldest')}: a bound is a whole number, 1 or more, or a celery_affinity.Bound"
)

_FULL = (REFUSE, DROP_OLDEST, DROP_NEWEST)


@dataclass(frozen=True)
class Bound:
    """At most *most* jobs of a type wait. *full* decides what happens to further calls.

    "refuse": the call raises QueueFull, and nothing is published. "drop-oldest": the longest-waiting job ends as
    revoked, and the call takes its place. "drop-newest": the new call ends as revoked. Raises SettingError for
    anything else.
    """

    most: int
    full: str = REFUSE

    def __post_init__(self) -> None:
        if not _is_most(self.most):
            raise SettingError(f"most of a Bound must be {COUNT(None)}, got: {printable(self.most)}")
        if self.full not in _FULL:
            accepted = " or ".join(map(repr, _FULL))
            raise SettingError(f"full of a Bound must be {accepted}, got: {printable(self.full)}")

    @property
    def refuses(self) -> bool:
        return self.full == REFUSE


def _is_most(value: object) -> bool:
    return COUNT(value) is None


def check_bounds(value: object) -> str | None:
    """Return None if *value* can be the setting; else what is accepted."""
    good = isinstance(value, Mapping) and all(
        values.is_pattern(pattern) and (isinstance(bound, Bound) or _is_most(bound)) for pattern, bound in value.items()
    )
    return None if good else ACCEPTED


def as_bound(type_: str, bounds: Mapping[str, int | Bound]) -> Bound | None:
    """Return the bound of *type_* in a setting, by the pattern that counts (`patterns.precedence`), or None."""
    matching = [pattern for pattern in bounds if values.matches(pattern, type_)]
    if not matching:
        return None
    bound = bounds[min(matching, key=values.pattern_precedence)]
    return bound if isinstance(bound, Bound) else Bound(bound)


def bound_words(bounds: Mapping[str, Bound]) -> str:
    """Return bounds by type as a publish says them."""
    return " ".join(f"{encode_part(type_)}={bound.most}/{bound.full}" for type_, bound in bounds.items())


def drop_reason(bound: Bound) -> str:
    """Return the reason that is kept of a job that was dropped, as the arrows have it."""
    return f"dropped: {bound.most} jobs of its type waited"
