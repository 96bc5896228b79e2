"""Reject keys in several cohorts: each cohort counts separately, so a limit of 1 would admit one job per cohort.

An app declares each task's type, and the templates or functions that make its keys. A literal key of a call is compared
with them. `check` finds other conflicts among the keys in use. Merge keys need no check: merged calls have one type,
and so one cohort.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from weakref import WeakKeyDictionary

from celery import Celery

from ..errors import AffinityError, OptionError
from ..options.call_options import resolve
from ..options.key_templates import KeyFunction, pattern_of
from ..options.keys import Exclusive, Locality, Rate, Rule, TenantKey
from ..options.merge import Merge
from ..schema import values
from ..schema.rules_codec import decode_rules
from ..schema.values import decode_part
from ..settings import tenants
from ..settings.table import Settings
from .app_config import settings_of, sources_of_task, tasks_of
from .option_checks import sources_without_call
from .option_resolution import KeyResolver

#: Source of keys that can be equal, with the prefix of its kind: the pattern of a template, or a function.
Source = str | tuple[str, KeyFunction]


class KeyUse(NamedTuple):
    """A *task* with a *type* in a *cohort*, whose jobs have a key set by *option*."""

    option: str
    task: str
    type: str
    cohort: str


#: App -> number of its tasks, and the uses of each source by tasks that declare a type.
_USES: "WeakKeyDictionary[Celery, tuple[int, Mapping[Source, Sequence[KeyUse]]]]" = WeakKeyDictionary()


def check_key_cohorts(app: Celery, task_name: str, type_: str, maker: KeyResolver) -> None:
    """Raise OptionError if the job of a call has a key that tasks of another cohort use too."""
    settings, uses = settings_of(app), _uses(app)
    cohort = settings.cohort_of(type_)
    for option, source in _sources(task_name, maker.parts, settings):
        for other in uses.get(source, ()):
            if other.cohort != cohort:
                raise OptionError(_describe_conflict(source, KeyUse(option, task_name, type_, cohort), other))


def keys_in_several_cohorts(app: Celery) -> Iterator[tuple[str, Sequence[KeyUse]]]:
    """Yield each source of keys in several cohorts, as text, with the tasks that declare it."""
    for source, uses in _uses(app).items():
        if len({use.cohort for use in uses}) > 1:
            yield _shown(source), uses


def _uses(app: Celery) -> Mapping[Source, Sequence[KeyUse]]:
    tasks = tasks_of(app)
    number, uses = _USES.get(app, (-1, {}))
    if number != len(tasks):
        uses = _find_uses(app, dict(tasks))
        _USES[app] = len(tasks), uses
    return uses


def _find_uses(app: Celery, tasks: Mapping[str, object]) -> Mapping[Source, Sequence[KeyUse]]:
    settings, uses = settings_of(app), dict[Source, list[KeyUse]]()
    for name, task in sorted(tasks.items()):
        with suppress(AffinityError):  # an invalid option, which a call of the task reports
            by_task = sources_of_task(name, task, settings)
            parts = [resolve(option, by_task) for option in (Exclusive.option, Rate.option, TenantKey.option)]
            sources = list(_sources(name, [part for part in parts if part is not None], settings))
            type_ = resolve("affinity", sources_without_call(app, name, task, settings)) if sources else None
            if type_ is None or type_ == app.conf.task_default_queue:
                continue  # no type is declared, so all of its calls can set the same one
            for option, source in sources:
                uses.setdefault(source, []).append(KeyUse(option, name, type_, settings.cohort_of(type_)))
    return uses


def _sources(
    task_name: str, parts: Sequence[Rule | Merge | Locality | str], settings: Settings
) -> Iterator[tuple[str, Source]]:
    """Yield the sources of keys, with their options, of jobs whose rules have these *parts*.

    Tenants are included only if a task sets them and the settings give them a quota; otherwise they can be inherited.
    """
    for part in parts:
        if isinstance(part, str):
            stated_keys = (key for key in decode_rules(part).keys if not key.is_of_tenant)
            yield from (("exclusive" if key.is_exclusive else "rate", decode_part(key.key)) for key in stated_keys)
        elif isinstance(part, Rule):
            made_by = pattern_of(part.option, part.key, task_name) if isinstance(part.key, str) else part.key
            if not isinstance(part, TenantKey) or _has_quota(made_by, settings):
                yield part.option, part.prefix + made_by if isinstance(made_by, str) else (part.prefix, made_by)


def _has_quota(name: str | KeyFunction, settings: Settings) -> bool:
    """Return True if the settings define a quota for a tenant that matches *name*, a pattern or a function."""
    quotas = tenants.typed_tenants(settings.tenants) or {} if isinstance(settings.tenants, str) else settings.tenants
    if isinstance(name, str) and "*" not in name:
        quota = quotas.get(name, quotas.get(tenants.OTHERS))
        return quota is not None and _limits(quota)
    limited = [pattern for pattern, quota in quotas.items() if _limits(quota)]
    return any(
        pattern == tenants.OTHERS or not isinstance(name, str) or values.matches(name, pattern) for pattern in limited
    )


def _limits(quota: object) -> bool:
    tenant = tenants.as_tenant(quota)
    return tenant.max is not None or tenant.min > 0


def _shown(source: Source) -> str:
    if isinstance(source, str):
        return source
    prefix, function = source
    return f"{prefix}{getattr(function, '__qualname__', function)}()"


def _describe_conflict(source: Source, use: KeyUse, other: KeyUse) -> str:
    quota = " with a quota" if use.option == TenantKey.option else ""
    return (
        f"{use.option}= must have keys{quota} of one cohort, since each cohort counts by itself, got: "
        f"{_shown(source)!r} of {_place(use)} and of {_place(other)}; put these types into one cohort, or give the "
        "keys different names"
    )


def _place(use: KeyUse) -> str:
    return f"type {use.type!r} in cohort {use.cohort!r} (task {use.task})"
