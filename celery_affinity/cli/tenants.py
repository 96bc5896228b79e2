"""``celery -A proj affinity tenants ...``: look at tenants with jobs, and set their quotas at run time."""

from collections.abc import Mapping

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..client.of_app import settings_of
from ..observe import cohorts
from ..observe.keyed import in_use
from ..rules import tenants as quotas
from ..rules.keyed.key_rules import OF_TENANT
from ..rules.numbers import COUNT_OR_0, MOST_COUNT
from ..rules.protocol import LONGEST_NUMBER
from ..rules.tenants import MOST_WEIGHT, Tenant
from ..server import tenant_quotas
from ..server.scheduler import Scheduler
from . import text_of_tenants as text
from .broker import AS_JSON, asked_of, changed_of, show
from .lists_by_default import ListsByDefault

#: The quotas in force, and those of app.conf.
_Quotas = tuple[Mapping[str, Tenant], Mapping[str, Tenant]]


@click.group(cls=ListsByDefault)
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
    found = cohorts.found(asked_of(ctx, lambda scheduler: in_use.find(scheduler.reader, OF_TENANT + pattern, limit)))
    show(found, text.tenants, json=as_json)


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
    fields = {} if most is None else {"max": None if most == quotas.NONE else _most(most)}
    fields |= {field: value for field, value in {"min": least, "weight": weight}.items() if value is not None}
    own = settings_of(ctx.obj.app)

    def change(scheduler: Scheduler) -> _Quotas:
        tenant_quotas.change(scheduler, own, name, fields)
        return tenant_quotas.read(scheduler, own)

    changed_of(ctx, change, _in_words, json=as_json, in_json=lambda both: both[0])


def _most(typed: str) -> int:
    number = int(typed) if typed.isdecimal() and len(typed) <= LONGEST_NUMBER else -1
    if (accepted := COUNT_OR_0(number)) is not None:
        raise click.BadParameter(f"{accepted}, or {quotas.NONE!r}, got: {typed!r}", param_hint="--max")
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
        if not tenant_quotas.reset(scheduler, own, name):
            known.update(tenant_quotas.read(scheduler, own)[0])
            return None
        return tenant_quotas.read(scheduler, own)

    def not_set() -> str:
        others = f"set are {', '.join(sorted(known))}" if known else "none is set"
        return f"no quota is set for {name!r}: {others}"

    changed_of(ctx, reset, _in_words, json=as_json, in_json=lambda both: both[0], nothing=not_set)


def _in_words(both: _Quotas) -> str:
    return text.quotas(*both)
