"""Gather which keys tasks of several cohorts have in common: such a key counts in each cohort by itself."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from celery import Celery

from ..client.of_app import rules_by_name
from ..errors import AffinityError
from ..rules.affinity import affinity_of
from ..rules.keyed.key_rules import Rule, TenantKey, as_tenant
from ..rules.keyed.template import pattern_of
from ..rules.settings import Settings


def shared_keys(
    app: Celery, own: Settings, declared: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each pattern of keys that tasks of several cohorts make, and these tasks, each with its cohort.

    *declared*: type -> its declarations. The names of tenants count only if `affinity_tenants` has quotas. Keys that a
    function makes are not known.
    """
    found: dict[str, dict[str, str]] = {}
    for name, task in sorted(app.tasks.items() if own.cohorts else ()):
        types = [type_ for type_, who in declared.items() if f"task {name}" in who]
        with suppress(AffinityError):  # said by `gather_app`
            for type_ in types:
                for rule in _rules(task, own):
                    if isinstance(rule.key, str):
                        pattern = rule.prefix + pattern_of(rule.option, rule.key, name)
                        found.setdefault(pattern, {})[name] = own.cohort_of(type_)
    yield from ((pattern, its) for pattern, its in found.items() if len(set(its.values())) > 1)


def _rules(task: object, own: Settings) -> Iterator[Rule | TenantKey]:
    for said in (affinity_of(task), rules_by_name(task.name, own)):  # type: ignore[attr-defined]
        yield from said.keys
        tenant = as_tenant(said.tenant)
        if tenant is not None and own.tenants:
            yield tenant
