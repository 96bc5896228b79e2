"""claim: pending -> inbox. Other arrows end with the same move; this one goes on where they stopped."""

from collections.abc import Iterable, Set

from ..model import Cohort
from ..placing.fill import fill


def claim(cohort: Cohort, types: Iterable[str], *, now_us: int) -> Set[str]:
    """Go on with the types that another arrow named as `more`. Return `more`."""
    return fill(cohort, set(types), now_us)
