"""``celery -A proj affinity keys`` and ``tenants``: show keys and tenants, and set limits and quotas at run time."""

from collections.abc import Mapping

import click

from ..clock import SECOND_US
from ..publishing.app_config import settings_of
from ..reports import key_usage
from ..reports.key_usage import KeyDetails
from ..reports.keys import KeyName, holder_text, limit_text
from ..reports.render import (
    duration_or_dash,
    duration_text,
    format_table,
    mode_text,
    time_text,
    wrap_paragraph,
)
from ..scheduler import runtime_settings
from ..scheduler.cohorts import CohortAnswers
from ..scheduler.scheduler import Scheduler
from ..schema.constants import LONGEST_NUMBER
from ..schema.values import COUNT_OR_0, MOST_COUNT, pattern_precedence
from ..settings import limits as limit_settings
from ..settings import tenants as tenant_settings
from ..settings.limits import Limit
from ..settings.table import Settings
from ..settings.tenants import MOST_WEIGHT, NONE, OTHERS, Tenant
from .framework import (
    DefaultListGroup,
    answers_of,
    change_in_cohorts,
    command,
    report_command,
    show_per_cohort,
)


def key_text(details: KeyDetails) -> str:
    """Return one key's limit, holders and waiting jobs as a few lines."""
    key = details.key
    groups = [
        f"{group.jobs} of {group.type} priority {group.priority}, {mode_text(group.on_demand)}"
        + ("" if group.kept_back else "; the first may start")
        for group in details.waiting
    ]
    more = [f"and {key.held - len(details.holders)} more"] if key.held > len(details.holders) else []
    rows = [
        ("key", key.key),
        ("limit", f"{limit_text(key)} in force"),
        *_numbered("declared", [f"{_stated(text)} by {task}" for task, text in details.stated.items()]),
        *_numbered("held", [*map(holder_text, details.holders), *more] or ["by no job"]),
        *([("reserved", _reserved(key))] if key.kept_for else []),
        *([("reserved", f"for type {key.turn}, which has waited longest")] if key.turn else []),
        *_numbered("waiting", groups or ["no job"]),
        ("oldest wait", duration_or_dash(key.oldest_wait_s)),
    ]
    return wrap_paragraph(rows)


def limits_text(limits: Mapping[str, Limit], conf: Mapping[str, Limit]) -> str:
    """Return the limits in force and in app.conf as a table. The first pattern that matches a key applies."""
    if not limits and not conf:
        return "no limit is set; the tasks' own limits count"
    patterns = sorted({*limits, *conf}, key=pattern_precedence)
    rows = [(pattern, str(limits.get(pattern, "-")), str(conf.get(pattern, "-"))) for pattern in patterns]
    return format_table(("pattern", "limit in force", "app.conf"), rows)


def _reserved(key: KeyName) -> str:
    due = "" if key.kept_until_s is None else f", which is due at {time_text(key.kept_until_s)}"
    return f"for the retry of {key.kept_for}{due}"


def _stated(text: str) -> str:
    starts, slash, period_us = text.partition("/")
    return f"{starts} in {duration_text(int(period_us) / SECOND_US)}" if slash and period_us.isdecimal() else text


def _numbered(name: str, lines: list[str]) -> list[tuple[str, str]]:
    return [(name if number == 0 else "", line) for number, line in enumerate(lines)]


_LIMITS = "limits"

#: The limits in force, and the limits in app.conf, which a reset restores.
_Limits = tuple[dict[str, limit_settings.Limit], dict[str, limit_settings.Limit]]


@click.group(cls=DefaultListGroup)
def keys() -> None:
    """Show keys and change their limits and rates, which bound the running or starting jobs of one key.

    `keys [PATTERN]` means `keys list [PATTERN]`.
    """


keys.add_command(report_command("keys list"))


@command("show", keys, json=True)
@click.argument("key")
def show_key(ctx: click.Context, key: str, as_json: bool) -> None:
    """Show a key: its limit, its holders, and the jobs that wait for it."""
    answers = answers_of(ctx, lambda scheduler: key_usage.show_key(scheduler.reader, key))
    details = {name: key_details for name, key_details in answers.answers.items() if key_details is not None}
    if not details:
        raise click.ClickException(f"no job holds the key {key!r} or waits for it")
    show_per_cohort(CohortAnswers(details, answers.down), key_text, json=as_json)


@command("set", keys, json=True)
@click.argument("pattern")
@click.argument("limit")
def set_limit(ctx: click.Context, pattern: str, limit: str, as_json: bool) -> None:
    """Set the maximum number of running jobs for each key that matches PATTERN. 0 closes the key.

    For a PATTERN that begins with rate:, LIMIT is the maximum number of starts in a period, such as 100/m. The limit
    takes effect immediately, also for waiting jobs, and stays until it is reset. It overrides the tasks' limits.
    """
    own = settings_of(ctx.obj.app)

    def change(scheduler: Scheduler) -> _Limits:
        limits, _ = _limits(scheduler, own)
        runtime_settings.change_settings(
            scheduler,
            own,
            {_LIMITS: limit_settings.shown_limits({**limits, pattern: limit_settings.typed_limit(limit)})},
        )
        return _limits(scheduler, own)

    change_in_cohorts(ctx, change, _limits_output, json=as_json, in_json=lambda both: both[0])


@command("reset", keys, json=True)
@click.argument("pattern")
def reset_limit(ctx: click.Context, pattern: str, as_json: bool) -> None:
    """Remove the limit that was set for PATTERN. The limit in app.conf applies again, or the tasks' limits."""
    own = settings_of(ctx.obj.app)
    limited: set[str] = set()

    def reset(scheduler: Scheduler) -> _Limits | None:
        limits, conf = _limits(scheduler, own)
        limited.update(limits)
        if pattern not in limits.keys() | conf.keys():
            return None
        runtime_settings.reset_entry(
            scheduler, own, _LIMITS, pattern, in_force=limits, conf=conf, shown=limit_settings.shown_limits
        )
        return _limits(scheduler, own)

    def not_set() -> str:
        others = f"set are {', '.join(sorted(limited))}" if limited else "none is set"
        return f"no limit is set for {pattern!r}: {others}"

    change_in_cohorts(ctx, reset, _limits_output, json=as_json, in_json=lambda both: both[0], nothing=not_set)


def _limits(scheduler: Scheduler, own: Settings) -> _Limits:
    """Return the limits in force, and the limits in app.conf, which a reset restores."""
    (setting,) = (one for one in runtime_settings.read_settings(scheduler, own) if one.name == _LIMITS)
    return limit_settings.typed_limits(str(setting.value)) or {}, limit_settings.typed_limits(str(setting.conf)) or {}


def _limits_output(both: _Limits) -> str:
    return limits_text(*both)


def quotas_text(quotas: Mapping[str, Tenant], conf: Mapping[str, Tenant]) -> str:
    """Return a table of the quotas in force and in ``app.conf``. "*", for tenants without a quota, is last."""
    if not quotas and not conf:
        return "no quota is set: each tenant may have any number of slots"
    names = sorted({*quotas, *conf}, key=lambda name: (name == OTHERS, name))
    return format_table(
        ("tenant", "quota in force", "app.conf"),
        [(name, _quota_text(quotas, name), _quota_text(conf, name)) for name in names],
    )


def _quota_text(quotas: Mapping[str, Tenant], name: str) -> str:
    if name not in quotas:
        return "-"
    quota = quotas[name]
    minimum = f", min {quota.min}" if quota.min else ""
    weight = f", weight {quota.weight}" if quota.weight != 1 else ""
    return f"{NONE if quota.max is None else quota.max}{minimum}{weight}"


#: The quotas in force, and the quotas in app.conf.
_Quotas = tuple[Mapping[str, Tenant], Mapping[str, Tenant]]


@click.group(cls=DefaultListGroup)
def tenants() -> None:
    """Show the tenants that have jobs, and change their quotas of slots.

    `tenants [PATTERN]` means `tenants list [PATTERN]`.
    """


tenants.add_command(report_command("tenants list"))


@command("set", tenants, json=True)
@click.argument("name")
@click.option("--max", "most", help="Largest number of slots, or none.")
@click.option(
    "--min",
    "least",
    type=click.IntRange(0, MOST_COUNT),
    help="Slots that its jobs get before those of others; 0: none.",
)
@click.option("--weight", type=click.IntRange(1, MOST_WEIGHT), help="Part of the time of slots, beside others.")
def set_quota(
    ctx: click.Context, name: str, most: str | None, least: int | None, weight: int | None, as_json: bool
) -> None:
    """Set the slots and the weight of the tenant NAME; * means each tenant without a quota.

    --max 0 closes the tenant. The quota takes effect immediately, also for waiting jobs, and stays until it is reset.
    Running jobs continue. Values that are not given stay unchanged.
    """
    if most is None and least is None and weight is None:
        raise click.UsageError("give some of --max, --min and --weight")
    fields = {} if most is None else {"max": None if most == tenant_settings.NONE else _parse_max(most)}
    fields |= {field: value for field, value in {"min": least, "weight": weight}.items() if value is not None}
    own = settings_of(ctx.obj.app)

    def change(scheduler: Scheduler) -> _Quotas:
        runtime_settings.change_quota(scheduler, own, name, fields)
        return runtime_settings.read_quotas(scheduler, own)

    change_in_cohorts(ctx, change, _quotas_output, json=as_json, in_json=lambda both: both[0])


def _parse_max(typed: str) -> int:
    number = int(typed) if typed.isdecimal() and len(typed) <= LONGEST_NUMBER else -1
    if (accepted := COUNT_OR_0(number)) is not None:
        raise click.BadParameter(f"{accepted}, or {tenant_settings.NONE!r}, got: {typed!r}", param_hint="--max")
    return number


@command("reset", tenants, json=True)
@click.argument("name")
def reset_quota(ctx: click.Context, name: str, as_json: bool) -> None:
    """Remove the quota that was set for NAME. The quota in app.conf applies again, or the quota of *."""
    own = settings_of(ctx.obj.app)
    named: set[str] = set()

    def reset(scheduler: Scheduler) -> _Quotas | None:
        if not runtime_settings.reset_quota(scheduler, own, name):
            named.update(runtime_settings.read_quotas(scheduler, own)[0])
            return None
        return runtime_settings.read_quotas(scheduler, own)

    def not_set() -> str:
        others = f"set are {', '.join(sorted(named))}" if named else "none is set"
        return f"no quota is set for {name!r}: {others}"

    change_in_cohorts(ctx, reset, _quotas_output, json=as_json, in_json=lambda both: both[0], nothing=not_set)


def _quotas_output(both: _Quotas) -> str:
    return quotas_text(*both)
