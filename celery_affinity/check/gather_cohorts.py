"""Gather which keys several cohorts have in common: those that tasks declare, and those that jobs have now."""

from collections.abc import Iterator, Mapping

from celery import Celery

from ..client.cohort_keys import in_several
from ..observe.keyed import in_use
from ..rules.settings import Settings
from ..server.reader import Reader

#: Largest number of keys of a cohort that are looked at.
_MOST_KEYS = 1_000


def shared_keys(app: Celery, own: Settings) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield what makes keys that tasks of several cohorts declare, and these tasks, each with its cohort."""
    for made_by, uses in in_several(app) if own.cohorts else ():
        yield made_by, {use.task: use.cohort for use in uses}


def keys_in_use(reader: Reader, own: Settings) -> frozenset[str]:
    """Return the keys of a cohort's jobs that limit something; of an app without cohorts none."""
    found = in_use.find(reader, "*", _MOST_KEYS).keys if own.cohorts else []
    return frozenset(key.key for key in found if key.limit is not None or key.starts or key.minimum)
