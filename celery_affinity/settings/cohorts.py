"""Cohorts: parts of a fleet that are scheduled separately by type, each on its own shard or server.

``affinity_cohorts`` is ``{"ml": Cohort(["gpu*"]), "eu": Cohort(["eu.*"], url="redis://other")}``. A type belongs to the
cohort with a matching pattern. Types without a match belong to `DEFAULT`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..errors import SettingError, printable
from ..schema import values

#: The cohort of all types without a matching pattern. It is on the server of ``broker_url``.
DEFAULT = "default"

SETTING = "affinity_cohorts"

ACCEPTED = (
    "a mapping of names to cohorts, such as {'ml': Cohort(['gpu*']), 'eu': Cohort(['eu.*'], url='redis://other')}: a "
    f"name is letters, digits, '.', '_' and '-', and not '{DEFAULT}'; a cohort is a celery_affinity.Cohort, or a "
    "mapping with 'types', a list of patterns in which * stands for any characters, and perhaps 'url', a broker's URL"
)

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True, repr=False)
class Cohort:
    """Types that are scheduled together, separately from all others. Raises SettingError for invalid values.

    *types*: patterns, in which ``*`` stands for any characters. *url*: the server of the cohort's jobs. None: the
    server of ``broker_url``; on a cluster each cohort has its own hash slot there, and so its own shard.
    """

    types: Sequence[str]
    url: str | None = None

    def __post_init__(self) -> None:
        good = isinstance(self.types, list | tuple) and self.types
        if not good or not all(pattern and values.is_pattern(pattern) for pattern in self.types):
            raise SettingError(
                f"types of a Cohort must be a list of patterns of types, such as ['gpu*'], got: {printable(self.types)}"
            )
        if self.url is not None and not (isinstance(self.url, str) and "://" in self.url):
            raise SettingError("url of a Cohort must be a broker's URL, such as redis://other:6379/0, or None")
        object.__setattr__(self, "types", tuple(self.types))

    def __repr__(self) -> str:
        """Return the text for `celery report` and `inspect conf`, without the URL's password."""
        url = "" if self.url is None else f", url={values.mask_password(self.url)!r}"
        return f"Cohort({[*self.types]!r}{url})"


def as_cohort(value: object) -> Cohort:
    """Return *value*, a Cohort or a mapping of its fields, as a Cohort. Raises SettingError."""
    if isinstance(value, Cohort):
        return value
    if not isinstance(value, Mapping) or not {"types"} <= {*value} <= {"types", "url"}:
        raise SettingError(f"{SETTING} must be {ACCEPTED}, got: {printable(value, values.mask_password)}")
    return Cohort(**value)


def check_cohorts(value: object) -> str | None:
    """Return None if *value* is a valid setting. Otherwise return the accepted values as text."""
    if not isinstance(value, Mapping) or not all(map(_is_name, value)):
        return ACCEPTED
    return None


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name) and name != DEFAULT and _NAME_CHARACTERS.issuperset(name)


def cohort_map(value: Mapping[str, object]) -> dict[str, Cohort]:
    """Return the cohorts of a checked setting. Raises SettingError if two cohorts name the same type."""
    cohorts = {name: as_cohort(definition) for name, definition in value.items()}
    for cohort in cohorts.values():
        for pattern in cohort.types:
            if "*" not in pattern:
                cohort_of(pattern, map_text(cohorts))
    return cohorts


#: Sorted cohort names, each with its patterns. Hashable, for use as a cache key.
Patterns = tuple[tuple[str, tuple[str, ...]], ...]


def map_text(cohorts: Mapping[str, Cohort]) -> Patterns:
    return tuple(sorted((name, tuple(cohort.types)) for name, cohort in cohorts.items()))


@lru_cache(maxsize=4096)
def cohort_of(type_: str, cohorts: Patterns) -> str:
    """Return the name of the cohort of *type_*. Raises SettingError if two cohorts match it."""
    matches = [(name, pattern) for name, patterns in cohorts for pattern in patterns if values.matches(pattern, type_)]
    names = list(dict.fromkeys(name for name, _ in matches))
    if len(names) > 1:
        conflicts = " and ".join(f"{pattern!r} of cohort {name!r}" for name, pattern in matches)
        raise SettingError(f"{SETTING} must have each type in one cohort, got: type {type_!r} matches {conflicts}")
    return names[0] if names else DEFAULT


def shown_cohorts(cohorts: Patterns) -> str:
    """Return the map as stored in Redis and shown to users: ``eu=eu.* ml=gpu*``.

    URLs are omitted: they can differ between processes and contain passwords.
    """
    return " ".join(f"{name}={','.join(sorted(map(values.encoded_pattern, patterns)))}" for name, patterns in cohorts)
