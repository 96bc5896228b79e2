"""Facts and rules about cohorts: keys that several cohorts have in common are counted separately in each cohort."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from celery import Celery

from ..publishing.cohort_keys import keys_in_several_cohorts
from ..reports import key_usage
from ..scheduler.reader import Reader
from ..settings.table import Settings
from . import jobs, server, workers
from .facts import Facts
from .finding import Finding, join_names, with_full_stop

#: Maximum number of keys that are read per cohort.
_MAX_KEYS = 1_000


def shared_keys(app: Celery, own: Settings) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the sources of keys that tasks of several cohorts declare, and their tasks -> cohorts."""
    for made_by, uses in keys_in_several_cohorts(app) if own.cohorts else ():
        yield made_by, {use.task: use.cohort for use in uses}


def keys_in_use(reader: Reader, own: Settings) -> frozenset[str]:
    """Return the keys of a cohort's jobs that limit something, or none if the app has no cohorts."""
    keys = key_usage.find_keys(reader, "*", _MAX_KEYS).keys if own.cohorts else []
    return frozenset(key.key for key in keys if key.limit is not None or key.starts or key.minimum)


_ONE_COHORT = "Put the types of these jobs into one cohort, or give the keys different names."


def key_in_cohorts(facts: Facts) -> Iterator[Finding]:
    for made_by, tasks in facts.app.shared_keys.items():
        users = join_names(f"{task} ({cohort})" for task, cohort in tasks.items())
        yield Finding(
            "key-in-cohorts",
            f"Tasks of several cohorts have keys such as {made_by!r}: {users}. Each cohort counts by itself, so a "
            "limit of 1 would let one job run in each of them: calls of these tasks are refused.",
            _ONE_COHORT,
        )


def key_used_in_cohorts(facts: Facts) -> Iterator[Finding]:
    fleets = {"default": facts.fleet, **{name: cohort.fleet for name, cohort in facts.cohorts.items()}}
    users: dict[str, list[str]] = {}
    for cohort, fleet in fleets.items():
        for key in () if fleet is None else fleet.keys_in_use:
            users.setdefault(key, []).append(cohort)
    shared = join_names(f"{key!r} ({', '.join(names)})" for key, names in sorted(users.items()) if len(names) > 1)
    if shared:
        yield Finding(
            "key-used-in-cohorts",
            f"Jobs of several cohorts have these keys: {shared}. Each cohort counts by itself.",
            _ONE_COHORT,
        )


def findings_per_cohort(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about server, workers and jobs of each cohort other than `default`, with its name."""
    for name, cohort in facts.cohorts.items():
        if cohort.down is not None:
            yield Finding(
                "cohort-down",
                f"Cohort {name!r} does not answer correctly: {with_full_stop(cohort.down)}",
                "Check that its server runs, that this machine can reach it, and that user and password are right. "
                "Jobs of its types wait, and calls of them fail. Nothing else of it was checked.",
            )
            continue
        for rule in (*_RULES_PER_COHORT, *(server.RULES if cohort.server != facts.server else ())):
            yield from (replace(finding, what=f"Cohort {name!r}: {finding.what}") for finding in rule(cohort))


_RULES_PER_COHORT = (
    workers.worker_silent,
    workers.worker_stalled,
    jobs.type_waits,
    jobs.type_unserved,
    jobs.bound_full,
    jobs.stock_messages,
    jobs.nobody_ticks,
    jobs.dead_letters,
    jobs.unserved,
    jobs.reserve_too_large,
    jobs.settings_differ,
    jobs.settings_changed,
    jobs.settings_damaged,
)

RULES = (key_in_cohorts, key_used_in_cohorts, findings_per_cohort)
