"""Cohorts: parts of a fleet that are scheduled apart, each by its types, on a shard or a server of its own.

``affinity_cohorts`` is ``{"ml": Cohort(["gpu*"]), "eu": Cohort(["eu.*"], url="redis://other")}``. A type belongs to the
cohort of which a pattern matches it, and to `DEFAULT` if none does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..errors import SettingError, printable
from ..schema import values

#: The cohort of all types that no pattern matches. It is on the server of ``broker_url``.
DEFAULT = "default"

SETTING = "affinity_cohorts"

ACCEPTED = (
    "a mapping of names to cohorts, such as {'ml': Cohort(['gpu*']), 'eu': Cohort(['eu.*'], url='redis://other')}: a "
    f"name is letters, digits, '.', '_' and '-', and not '{DEFAULT}'; a cohort is a celery_affinity.Cohort, or a "
    "mapping with 'types', a list of patterns in which * stands for any characters, and perhaps 'url', a broker's URL"
)

_IN_A_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True, repr=False)
class Cohort:
    """The types that are scheduled together, apart from all others.

    *types*: patterns, in which ``*`` stands for any characters. *url*: the server of the cohort's jobs; None: that of
    ``broker_url``, where on a cluster each cohort has a slot, and so a shard, of its own. Raises SettingError for
    anything else.
    """

    types: Sequence[str]
    url: str | None = None

    def __post_init__(self) -> None:
        good = isinstance(self.types, list | tuple) and self.types
        if not good or not all(each and values.is_pattern(each) for each in self.types):
            raise SettingError(
                f"types of a Cohort must be a list of patterns of types, such as ['gpu*'], got: {printable(self.types)}"
            )
        if self.url is not None and not (isinstance(self.url, str) and "://" in self.url):
            raise SettingError("url of a Cohort must be a broker's URL, such as redis://other:6379/0, or None")
        object.__setattr__(self, "types", tuple(self.types))

    def __repr__(self) -> str:
        """Return what `celery report` and `inspect conf` show: the password of the URL is not part of it."""
        url = "" if self.url is None else f", url={values.mask_password(self.url)!r}"
        return f"Cohort({[*self.types]!r}{url})"


def as_cohort(value: object) -> Cohort:
    """Return the cohort that *value* says: a Cohort, or a mapping of its fields. Raises SettingError."""
    if isinstance(value, Cohort):
        return value
    if not isinstance(value, Mapping) or not {"types"} <= {*value} <= {"types", "url"}:
        raise SettingError(f"{SETTING} must be {ACCEPTED}, got: {printable(value, values.mask_password)}")
    return Cohort(**value)


def check_cohorts(value: object) -> str | None:
    """Return None if *value* can be the setting; else what is accepted."""
    if not isinstance(value, Mapping) or not all(map(_is_name, value)):
        return ACCEPTED
    return None


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name) and name != DEFAULT and _IN_A_NAME.issuperset(name)


def cohort_map(value: Mapping[str, object]) -> dict[str, Cohort]:
    """Return the cohorts of a checked setting. Raises SettingError if a type that it names is in two of them."""
    cohorts = {name: as_cohort(each) for name, each in value.items()}
    for cohort in cohorts.values():
        for pattern in cohort.types:
            if "*" not in pattern:
                cohort_of(pattern, map_text(cohorts))
    return cohorts


#: Names of cohorts, in order, each with its patterns: a map that can be a key of a cache.
Patterns = tuple[tuple[str, tuple[str, ...]], ...]


def map_text(cohorts: Mapping[str, Cohort]) -> Patterns:
    return tuple(sorted((name, tuple(each.types)) for name, each in cohorts.items()))


@lru_cache(maxsize=4096)
def cohort_of(type_: str, cohorts: Patterns) -> str:
    """Return the name of the cohort of *type_*. Raises SettingError if two cohorts match it."""
    found = [(name, pattern) for name, its in cohorts for pattern in its if values.matches(pattern, type_)]
    names = list(dict.fromkeys(name for name, _ in found))
    if len(names) > 1:
        said = " and ".join(f"{pattern!r} of cohort {name!r}" for name, pattern in found)
        raise SettingError(f"{SETTING} must have each type in one cohort, got: type {type_!r} matches {said}")
    return names[0] if names else DEFAULT


def shown_cohorts(cohorts: Patterns) -> str:
    """Return the map as Redis has it and people read it: ``eu=eu.* ml=gpu*``. Servers are not part of it.

    The URL of one server may differ from process to process, and may have a password.
    """
    return " ".join(f"{name}={','.join(sorted(map(values.encoded_pattern, its)))}" for name, its in cohorts)
