"""The output of ``celery affinity keys`` for people.

``celery -A proj affinity keys ...``: look at the keys of jobs, and set their limits at run time.

The output of ``celery affinity tenants`` for people.

``celery -A proj affinity tenants ...``: look at tenants with jobs, and set their quotas at run time.
"""

from collections.abc import Mapping, Sequence

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..clock import SECOND_US
from ..options.keys import OF_TENANT
from ..publishing.app_config import settings_of
from ..reports import cohorts, key_usage
from ..reports.key_usage import KeyDetails, KeysInUse
from ..reports.keys import Holder, KeyName
from ..reports.tenants import TenantStatus
from ..scheduler import runtime_settings
from ..scheduler.cohorts import CohortAnswers
from ..scheduler.scheduler import Scheduler
from ..schema.constants import LONGEST_NUMBER
from ..schema.keys import type_address
from ..schema.values import COUNT_OR_0, MOST_COUNT, pattern_precedence
from ..settings import limits as limit_settings
from ..settings import tenants as tenant_settings
from ..settings.limits import Limit
from ..settings.table import Settings
from ..settings.tenants import MOST_WEIGHT, NONE, OTHERS, Tenant
from .framework import AS_JSON, DefaultListGroup, answers_of, change_in_cohorts, show_per_cohort, show_report
from .render import duration_text, format_table, mode_text, pluralize, time_text, with_cohort_column, wrap_paragraph


def keys_text(found: KeysInUse) -> str:
    """Return keys as a table, and whether there are more; then the types that have a limit."""
    parts = [_keys(found)]
    if found.types:
        rows = [
            (type_address(each.type), str(each.limit), str(each.running), str(each.waiting)) for each in found.types
        ]
        parts.append(with_cohort_column(found.types, ("limit of a type", "limit", "running", "waiting"), rows))
    return "\n\n".join(parts)


def _keys(found: KeysInUse) -> str:
    if not found.keys and found.are_all:
        return "no job holds such a key or waits for one"
    rows = [
        (each.key, _limit(each), str(each.held), str(each.waiting), _wait(each), _held_by(each)) for each in found.keys
    ]
    shown = with_cohort_column(found.keys, ("key", "limit", "held", "waiting", "oldest wait", "held by"), rows)
    return shown if found.are_all else f"{shown}\n\nthere may be more: give a PATTERN, or a higher --limit"


def key_text(shown: KeyDetails) -> str:
    """Return the limit of one key, its holders, and the jobs that wait for it, as a few lines."""
    found = shown.key
    groups = [
        f"{each.jobs} of {each.type} priority {each.priority}, {mode_text(each.on_demand)}"
        + ("" if each.kept_back else "; the first may start")
        for each in shown.waiting
    ]
    more = [f"and {found.held - len(shown.holders)} more"] if found.held > len(shown.holders) else []
    rows = [
        ("key", found.key),
        ("limit", f"{_limit(found)} in force"),
        *_numbered("declared", [f"{_stated(text)} by {task}" for task, text in shown.stated.items()]),
        *_numbered("held", [*map(_holder, shown.holders), *more] or ["by no job"]),
        *([("reserved", _reserved(found))] if found.kept_for else []),
        *([("reserved", f"for type {found.turn}, which has waited longest")] if found.turn else []),
        *_numbered("waiting", groups or ["no job"]),
        ("oldest wait", _wait(found)),
    ]
    return wrap_paragraph(rows)


def limits_text(found: Mapping[str, Limit], conf: Mapping[str, Limit]) -> str:
    """Return the limits in force as a table, with those of app.conf: the first that matches a key counts."""
    if not found and not conf:
        return "no limit is set; the tasks' own limits count"
    said = sorted({*found, *conf}, key=pattern_precedence)
    rows = [(each, str(found.get(each, "-")), str(conf.get(each, "-"))) for each in said]
    return format_table(("pattern", "limit in force", "app.conf"), rows)


def _reserved(each: KeyName) -> str:
    due = "" if each.kept_until_s is None else f", which is due at {time_text(each.kept_until_s)}"
    return f"for the retry of {each.kept_for}{due}"


def _limit(each: KeyName) -> str:
    if each.starts:
        return f"{each.starts.most} in {duration_text(each.starts.period_s)}"
    return "-" if each.limit is None else str(each.limit)


def _stated(text: str) -> str:
    starts, slash, period_us = text.partition("/")
    return f"{starts} in {duration_text(int(period_us) / SECOND_US)}" if slash and period_us.isdecimal() else text


def _wait(each: KeyName) -> str:
    return "-" if each.oldest_wait_s is None else duration_text(each.oldest_wait_s)


def _held_by(each: KeyName) -> str:
    if each.holder is None:
        return "-"
    return _holder(each.holder) + (f" and {pluralize(each.held - 1, 'other')}" if each.held > 1 else "")


def _holder(each: Holder) -> str:
    return f"{each.task_id} ({each.task}) on {each.worker} for {duration_text(each.held_s)}"


def _numbered(name: str, lines: list[str]) -> list[tuple[str, str]]:
    return [(name if number == 0 else "", line) for number, line in enumerate(lines)]


_LIMITS = "limits"

#: The limits in force, and those of the app.conf that a reset goes back to.
_Limits = tuple[dict[str, limit_settings.Limit], dict[str, limit_settings.Limit]]


@click.group(cls=DefaultListGroup)
def keys() -> None:
    """Show keys and change their limits and rates. A limited number of jobs of one key run at a time, or start.

    `keys [PATTERN]` means `keys list [PATTERN]`.
    """


@keys.command("list", cls=CeleryCommand)
@click.argument("pattern", default="*")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000), help="Largest number to show.")
@AS_JSON
@click.pass_context
@handle_preload_options
def list_keys(ctx: click.Context, pattern: str, limit: int, as_json: bool) -> None:
    """List the keys that jobs hold or wait for. * in PATTERN stands for any characters."""
    found = cohorts.found_in_cohorts(
        answers_of(ctx, lambda scheduler: key_usage.find_keys(scheduler.reader, pattern, limit))
    )
    show_report(found, keys_text, json=as_json)


@keys.command("show", cls=CeleryCommand)
@click.argument("key")
@AS_JSON
@click.pass_context
@handle_preload_options
def show_key(ctx: click.Context, key: str, as_json: bool) -> None:
    """Show a key: its limit, its holders, and the jobs that wait for it."""
    asked = answers_of(ctx, lambda scheduler: key_usage.show_key(scheduler.reader, key))
    found = {name: each for name, each in asked.answers.items() if each is not None}
    if not found:
        raise click.ClickException(f"no job holds the key {key!r} or waits for it")
    show_per_cohort(CohortAnswers(found, asked.down), key_text, json=as_json)


@keys.command("set", cls=CeleryCommand)
@click.argument("pattern")
@click.argument("limit")
@AS_JSON
@click.pass_context
@handle_preload_options
def set_limit(ctx: click.Context, pattern: str, limit: str, as_json: bool) -> None:
    """Set how many jobs of each key that matches PATTERN may run at a time. 0 closes the key.

    For a PATTERN that begins with rate:, LIMIT is how many may start in a period, such as 100/m. The limit takes
    effect at once, also for waiting jobs, and stays until it is reset. It overrides what the tasks say.
    """
    own = settings_of(ctx.obj.app)

    def change(scheduler: Scheduler) -> _Limits:
        found, _ = _limits(scheduler, own)
        runtime_settings.change_settings(
            scheduler,
            own,
            {_LIMITS: limit_settings.shown_limits({**found, pattern: limit_settings.typed_limit(limit)})},
        )
        return _limits(scheduler, own)

    change_in_cohorts(ctx, change, _limit_words, json=as_json, in_json=lambda both: both[0])


@keys.command("reset", cls=CeleryCommand)
@click.argument("pattern")
@AS_JSON
@click.pass_context
@handle_preload_options
def reset_limit(ctx: click.Context, pattern: str, as_json: bool) -> None:
    """Remove the limit that was set for PATTERN. The limit in app.conf counts again, or else the tasks' limits."""
    own = settings_of(ctx.obj.app)

    known: set[str] = set()

    def reset(scheduler: Scheduler) -> _Limits | None:
        found, conf = _limits(scheduler, own)
        known.update(found)
        if pattern not in found.keys() | conf.keys():
            return None
        runtime_settings.reset_entry(
            scheduler, own, _LIMITS, pattern, found=found, conf=conf, shown=limit_settings.shown_limits
        )
        return _limits(scheduler, own)

    def not_set() -> str:
        others = f"set are {', '.join(sorted(known))}" if known else "none is set"
        return f"no limit is set for {pattern!r}: {others}"

    change_in_cohorts(ctx, reset, _limit_words, json=as_json, in_json=lambda both: both[0], nothing=not_set)


def _limits(scheduler: Scheduler, own: Settings) -> _Limits:
    """Return the limits in force, and those of the app.conf that a reset goes back to."""
    (found,) = (each for each in runtime_settings.read_settings(scheduler, own) if each.name == _LIMITS)
    return limit_settings.typed_limits(str(found.value)) or {}, limit_settings.typed_limits(str(found.conf)) or {}


def _limit_words(both: _Limits) -> str:
    return limits_text(*both)


def tenants_text(found: KeysInUse) -> str:
    """Return tenants as a table, and whether there may be more."""
    if not found.keys and found.are_all:
        return "no job of such a tenant runs or waits"
    rows = [
        (
            each.tenant or "",
            str(each.minimum or "-"),
            _max(each),
            str(each.held),
            str(each.waiting),
            _duration(each.oldest_wait_s),
        )
        for each in found.keys
    ]
    shown = with_cohort_column(found.keys, ("tenant", "min", "max", "slots", "waiting", "oldest wait"), rows)
    return shown if found.are_all else f"{shown}\n\nthere may be more: give a PATTERN, or a higher --limit"


def tenants_summary(found: Sequence[TenantStatus]) -> str:
    """Return tenants as a table, for the report on the fleet."""
    return with_cohort_column(
        found,
        ("tenant", "slots", "min", "max", "weight", "waiting", "oldest wait", ""),
        [
            (
                each.name,
                str(each.held),
                str(each.minimum or "-"),
                "-" if each.limit is None else str(each.limit),
                str(each.weight),
                str(each.waiting),
                _duration(each.oldest_wait_s),
                _note(each),
            )
            for each in found
        ],
    )


def _note(each: TenantStatus) -> str:
    if each.is_below_minimum:
        stops = f", {pluralize(each.preempting, 'job')} of others being stopped" if each.preempting else ""
        return f"below its minimum: its jobs go first{stops}"
    return "at its maximum" if each.is_at_maximum else ""


def quotas_text(found: Mapping[str, Tenant], conf: Mapping[str, Tenant]) -> str:
    """Return a table of the quotas in force beside those of ``app.conf``; "*", for tenants without a name, is last."""
    if not found and not conf:
        return "no quota is set: each tenant may have any number of slots"
    names = sorted({*found, *conf}, key=lambda name: (name == OTHERS, name))
    return format_table(
        ("tenant", "quota in force", "app.conf"), [(each, _said(found, each), _said(conf, each)) for each in names]
    )


def _said(quotas: Mapping[str, Tenant], name: str) -> str:
    if name not in quotas:
        return "-"
    quota = quotas[name]
    least = f", min {quota.min}" if quota.min else ""
    weight = f", weight {quota.weight}" if quota.weight != 1 else ""
    return f"{NONE if quota.max is None else quota.max}{least}{weight}"


def _max(each: KeyName) -> str:
    return "-" if each.limit is None else str(each.limit)


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else duration_text(seconds)


#: The quotas in force, and those of app.conf.
_Quotas = tuple[Mapping[str, Tenant], Mapping[str, Tenant]]


@click.group(cls=DefaultListGroup)
def tenants() -> None:
    """Show the tenants that have jobs, and change how many slots each may have.

    `tenants [PATTERN]` means `tenants list [PATTERN]`.
    """


@tenants.command("list", cls=CeleryCommand)
@click.argument("pattern", default="*")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000), help="Largest number to show.")
@AS_JSON
@click.pass_context
@handle_preload_options
def list_tenants(ctx: click.Context, pattern: str, limit: int, as_json: bool) -> None:
    """List the tenants whose jobs run or wait. * in PATTERN stands for any characters."""
    found = cohorts.found_in_cohorts(
        answers_of(ctx, lambda scheduler: key_usage.find_keys(scheduler.reader, OF_TENANT + pattern, limit))
    )
    show_report(found, tenants_text, json=as_json)


@tenants.command("set", cls=CeleryCommand)
@click.argument("name")
@click.option("--max", "most", help="Largest number of slots, or none.")
@click.option(
    "--min",
    "least",
    type=click.IntRange(0, MOST_COUNT),
    help="Slots that its jobs get before those of others; 0: none.",
)
@click.option("--weight", type=click.IntRange(1, MOST_WEIGHT), help="Part of the time of slots, beside others.")
@AS_JSON
@click.pass_context
@handle_preload_options
def set_quota(
    ctx: click.Context, name: str, most: str | None, least: int | None, weight: int | None, as_json: bool
) -> None:
    """Set how many slots the tenant NAME may have, and its weight; * stands for each tenant that is not named.

    --max 0 closes the tenant. The quota takes effect at once, also for waiting jobs, and stays until it is reset.
    Running jobs go on. What is not given stays as it is.
    """
    if most is None and least is None and weight is None:
        raise click.UsageError("give some of --max, --min and --weight")
    fields = {} if most is None else {"max": None if most == tenant_settings.NONE else _most(most)}
    fields |= {field: value for field, value in {"min": least, "weight": weight}.items() if value is not None}
    own = settings_of(ctx.obj.app)

    def change(scheduler: Scheduler) -> _Quotas:
        runtime_settings.change_quota(scheduler, own, name, fields)
        return runtime_settings.read_quotas(scheduler, own)

    change_in_cohorts(ctx, change, _quota_words, json=as_json, in_json=lambda both: both[0])


def _most(typed: str) -> int:
    number = int(typed) if typed.isdecimal() and len(typed) <= LONGEST_NUMBER else -1
    if (accepted := COUNT_OR_0(number)) is not None:
        raise click.BadParameter(f"{accepted}, or {tenant_settings.NONE!r}, got: {typed!r}", param_hint="--max")
    return number


@tenants.command("reset", cls=CeleryCommand)
@click.argument("name")
@AS_JSON
@click.pass_context
@handle_preload_options
def reset_quota(ctx: click.Context, name: str, as_json: bool) -> None:
    """Remove the quota that was set for NAME. The quota in app.conf counts again, or else that of *."""
    own = settings_of(ctx.obj.app)

    known: set[str] = set()

    def reset(scheduler: Scheduler) -> _Quotas | None:
        if not runtime_settings.reset_quota(scheduler, own, name):
            known.update(runtime_settings.read_quotas(scheduler, own)[0])
            return None
        return runtime_settings.read_quotas(scheduler, own)

    def not_set() -> str:
        others = f"set are {', '.join(sorted(known))}" if known else "none is set"
        return f"no quota is set for {name!r}: {others}"

    change_in_cohorts(ctx, reset, _quota_words, json=as_json, in_json=lambda both: both[0], nothing=not_set)


def _quota_words(both: _Quotas) -> str:
    return quotas_text(*both)
