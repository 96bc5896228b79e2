"""Setting ``affinity_max_pending``: the maximum number of waiting jobs per type, and the handling of further calls.

Each affected call carries the bound of its type, as ``pdf=10000/refuse``. A process without the setting sends no
bounds, so its calls are not limited.
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
    """At most *most* jobs of a type wait; *full* sets what happens to further calls. Raises SettingError.

    "refuse": the call raises QueueFull and publishes nothing.
    "drop-oldest": the longest-waiting job ends as revoked, and the call replaces it.
    "drop-newest": the new call ends as revoked.
    """

    most: int
    full: str = REFUSE

    def __post_init__(self) -> None:
        if not _is_limit(self.most):
            raise SettingError(f"most of a Bound must be {COUNT(None)}, got: {printable(self.most)}")
        if self.full not in _FULL:
            accepted = " or ".join(map(repr, _FULL))
            raise SettingError(f"full of a Bound must be {accepted}, got: {printable(self.full)}")

    @property
    def refuses(self) -> bool:
        return self.full == REFUSE


def _is_limit(value: object) -> bool:
    return COUNT(value) is None


def check_bounds(value: object) -> str | None:
    """Return None if *value* is a valid setting, or a description of the accepted values."""
    good = isinstance(value, Mapping) and all(
        values.is_pattern(pattern) and (isinstance(bound, Bound) or _is_limit(bound))
        for pattern, bound in value.items()
    )
    return None if good else ACCEPTED


def as_bound(type_: str, bounds: Mapping[str, int | Bound]) -> Bound | None:
    """Return the bound of *type_* from the setting's most specific pattern (`values.pattern_precedence`), or None."""
    matching = [pattern for pattern in bounds if values.matches(pattern, type_)]
    if not matching:
        return None
    bound = bounds[min(matching, key=values.pattern_precedence)]
    return bound if isinstance(bound, Bound) else Bound(bound)


def bound_words(bounds: Mapping[str, Bound]) -> str:
    """Return bounds by type in the format of the server function `publish`."""
    return " ".join(f"{encode_part(type_)}={bound.most}/{bound.full}" for type_, bound in bounds.items())
