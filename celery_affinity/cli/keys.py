"""``celery -A proj affinity keys`` and ``tenants``: show keys and tenants, and set limits and quotas at run time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click

from ..clock import SECOND_US
from ..publishing.app_config import settings_of
from ..reports import key_usage
from ..reports.key_usage import KeyDetails
from ..reports.keys import holder_text, limit_text
from ..reports.render import Row, duration_or_dash, duration_text, format_table, mode_text, time_text, wrap_paragraph
from ..scheduler import runtime_settings
from ..scheduler.cohorts import CohortAnswers
from ..scheduler.scheduler import Scheduler
from ..schema.constants import MAX_NUMBER_LENGTH
from ..schema.values import COUNT_OR_0, MAX_COUNT, pattern_precedence
from ..settings import limits as limit_settings
from ..settings.limits import NONE, Limit
from ..settings.table import Settings
from ..settings.tenants import MAX_WEIGHT, OTHERS, Tenant
from .framework import answers_of, command, report_command, show_per_cohort
from .groups import DefaultListGroup


def key_text(details: KeyDetails) -> str:
    """Return one key's limit, holders and waiting jobs as a few lines."""
    key = details.key
    groups = [
        f"{group.jobs} of {group.type} priority {group.priority}, {mode_text(group.on_demand)}"
        + ("" if group.kept_back else "; the first may start")
        for group in details.waiting
    ]
    more = [f"and {key.held - len(details.holders)} more"] if key.held > len(details.holders) else []
    due = "" if key.kept_until_s is None else f", which is due at {time_text(key.kept_until_s)}"
    rows: list[Row] = [
        ("key", key.key),
        ("limit", f"{limit_text(key)} in force"),
        ("paused", f"no job of this key starts until `celery affinity resume --key {key.key}`" if key.paused else None),
        ("declared", [f"{_stated(text)} by {task}" for task, text in details.stated.items()]),
        ("held", [*map(holder_text, details.holders), *more] or "by no job"),
        ("reserved", f"for the retry of {key.kept_for}{due}" if key.kept_for else None),
        ("reserved", f"for type {key.turn}, which has waited longest" if key.turn else None),
        ("waiting", groups or "no job"),
        ("oldest wait", duration_or_dash(key.oldest_wait_s)),
    ]
    return wrap_paragraph(rows)


def _stated(text: str) -> str:
    starts, slash, period_us = text.partition("/")
    return f"{starts} in {duration_text(int(period_us) / SECOND_US)}" if slash and period_us.isdecimal() else text


V = TypeVar("V")

#: The entries in force, and the entries in app.conf, which a reset restores.
Both = tuple[Mapping[str, V], Mapping[str, V]]


@dataclass(frozen=True)
class _Entries(Generic[V]):
    """The entries of a setting that are changed one by one: limits of keys, or quotas of tenants."""

    noun: str
    #: Header of the names.
    named: str
    #: What is printed if there are no entries.
    empty: str
    order: Callable[[str], Any]
    shown: Callable[[V], str]
    read: Callable[[Scheduler, Settings], Both[V]]

    def change(
        self, ctx: click.Context, change: Callable[[Scheduler, Settings], bool], name: str, *, as_json: bool
    ) -> None:
        """Change the entry *name* in each cohort, and print all entries. Exits with 1 if a cohort is down.

        *change* returns False if there is no such entry.
        """
        settings = settings_of(ctx.obj.app)
        others: set[str] = set()

        def change_and_read(scheduler: Scheduler) -> Both[V] | None:
            is_changed = change(scheduler, settings)
            both = self.read(scheduler, settings)
            others.update(both[0])
            return both if is_changed else None

        answers = answers_of(ctx, change_and_read)
        changed = {cohort: both for cohort, both in answers.answers.items() if both is not None}
        if not changed:
            set_ones = f"set are {', '.join(sorted(others))}" if others else "none is set"
            raise click.ClickException(f"no {self.noun} is set for {name!r}: {set_ones}")
        if as_json:
            in_force = {cohort: both[0] for cohort, both in changed.items()}
            show_per_cohort(CohortAnswers(in_force, answers.down), str, json=True)
        else:
            show_per_cohort(CohortAnswers(changed, answers.down), self._text, json=False)
        if answers.down:
            ctx.exit(1)

    def _text(self, both: Both[V]) -> str:
        names = sorted({*both[0], *both[1]}, key=self.order)
        rows = [(name, *(self.shown(entries[name]) if name in entries else "-" for entries in both)) for name in names]
        return format_table((self.named, f"{self.noun} in force", "app.conf"), rows) if rows else self.empty


def _read_limits(scheduler: Scheduler, settings: Settings) -> Both[Limit]:
    (limits,) = (row for row in runtime_settings.read_settings(scheduler, settings) if row.name == "limits")
    return limit_settings.typed_limits(str(limits.value)) or {}, limit_settings.typed_limits(str(limits.conf)) or {}


#: The first pattern that matches a key applies.
_LIMITS = _Entries[Limit](
    "limit", "pattern", "no limit is set; the tasks' own limits apply", pattern_precedence, str, _read_limits
)


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

    def change(scheduler: Scheduler, settings: Settings) -> bool:
        limits = {**_read_limits(scheduler, settings)[0], pattern: limit_settings.typed_limit(limit)}
        runtime_settings.change_settings(scheduler, settings, {"limits": limit_settings.shown_limits(limits)})
        return True

    _LIMITS.change(ctx, change, pattern, as_json=as_json)


@command("reset", keys, json=True)
@click.argument("pattern")
def reset_limit(ctx: click.Context, pattern: str, as_json: bool) -> None:
    """Remove the limit that was set for PATTERN. The limit in app.conf applies again, or the tasks' limits."""

    def reset(scheduler: Scheduler, settings: Settings) -> bool:
        limits, conf = _read_limits(scheduler, settings)
        if pattern not in limits.keys() | conf.keys():
            return False
        runtime_settings.reset_entry(
            scheduler, settings, "limits", pattern, in_force=limits, conf=conf, shown=limit_settings.shown_limits
        )
        return True

    _LIMITS.change(ctx, reset, pattern, as_json=as_json)


def _quota_text(quota: Tenant) -> str:
    minimum = f", min {quota.min}" if quota.min else ""
    weight = f", weight {quota.weight}" if quota.weight != 1 else ""
    return f"{NONE if quota.max is None else quota.max}{minimum}{weight}"


#: "*", for tenants without a quota, is last.
_QUOTAS = _Entries[Tenant](
    "quota",
    "tenant",
    "no quota is set: each tenant may have any number of slots",
    lambda name: (name == OTHERS, name),
    _quota_text,
    runtime_settings.read_quotas,
)


@click.group(cls=DefaultListGroup)
def tenants() -> None:
    """Show the tenants that have jobs, and change their quotas of slots.

    `tenants [PATTERN]` means `tenants list [PATTERN]`.
    """


tenants.add_command(report_command("tenants list"))


@command("set", tenants, json=True)
@click.argument("name")
@click.option("--max", "max_slots", help="Maximum number of slots, or none.")
@click.option(
    "--min",
    "min_slots",
    type=click.IntRange(0, MAX_COUNT),
    help="Number of slots that its jobs get before jobs of other tenants; 0: none.",
)
@click.option("--weight", type=click.IntRange(1, MAX_WEIGHT), help="Share of slot time relative to other tenants.")
def set_quota(
    ctx: click.Context, name: str, max_slots: str | None, min_slots: int | None, weight: int | None, as_json: bool
) -> None:
    """Set the slots and the weight of the tenant NAME; * means each tenant without a quota.

    --max 0 closes the tenant. The quota takes effect immediately, also for waiting jobs, and stays until it is reset.
    Running jobs continue. Values that are not given stay unchanged.
    """
    if max_slots is None and min_slots is None and weight is None:
        raise click.UsageError("give at least one of --max, --min and --weight")
    fields = {} if max_slots is None else {"max": None if max_slots == NONE else _parse_max(max_slots)}
    fields |= {field: value for field, value in {"min": min_slots, "weight": weight}.items() if value is not None}

    def change(scheduler: Scheduler, settings: Settings) -> bool:
        runtime_settings.change_quota(scheduler, settings, name, fields)
        return True

    _QUOTAS.change(ctx, change, name, as_json=as_json)


def _parse_max(typed: str) -> int:
    number = int(typed) if typed.isdecimal() and len(typed) <= MAX_NUMBER_LENGTH else -1
    if (accepted := COUNT_OR_0(number)) is not None:
        raise click.BadParameter(f"{accepted}, or {NONE!r}, got: {typed!r}", param_hint="--max")
    return number


@command("reset", tenants, json=True)
@click.argument("name")
def reset_quota(ctx: click.Context, name: str, as_json: bool) -> None:
    """Remove the quota that was set for NAME. The quota in app.conf applies again, or the quota of *."""
    _QUOTAS.change(
        ctx,
        lambda scheduler, settings: runtime_settings.reset_quota(scheduler, settings, name),
        name,
        as_json=as_json,
    )
