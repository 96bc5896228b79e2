"""``celery -A proj affinity check``: say what is wrong or risky, and how to fix it."""

from collections.abc import Sequence
from typing import NoReturn

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..check import LEVELS, Finding, Level, check
from ..check.as_json import as_json as outcome_as_json
from ..check.gather import gather
from . import text_of_check as text
from .broker import AS_JSON, asked_of, print_json
from .times import SecondsRange
from .words import printable

#: Exit codes. An unreadable command line ends with 2 as well.
FINE, WARNED, FAILED = 0, 1, 2


@click.command("check", cls=CeleryCommand)
@click.option("--repair", is_flag=True, help="Instead of a check, repair wrong counts and broken keys in Redis.")
@click.option("--dry-run", is_flag=True, help="With --repair, only show what is wrong.")
@click.option("--strict", is_flag=True, help="Exit with 1 if there are warnings.")
@click.option("--no-fleet", is_flag=True, help="Check only the app and the server, where no workers run, as in CI.")
@click.option(
    "--ignore",
    metavar="ID",
    multiple=True,
    type=click.Choice(sorted(LEVELS)),
    help="Leave out the finding with this id. Can be repeated.",
)
@click.option(
    "--timeout",
    default=1.0,
    show_default=True,
    type=SecondsRange(min=0.1),
    help="Seconds to wait for answers from workers.",
)
@AS_JSON
@click.pass_context
@handle_preload_options
def check_command(
    ctx: click.Context,
    repair: bool,
    dry_run: bool,
    strict: bool,
    no_fleet: bool,
    ignore: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> None:
    """Check app, server and fleet, and report errors and risks.

    Exits with 2 if there are errors, with 1 if there are warnings and --strict is given, else with 0.

    With --repair, compare counts, heads and free slots in Redis with the claims and lanes that they are computed from,
    and correct them. The fleet may run meanwhile. Exits with 1 if --dry-run finds something, else with 0.
    """
    if dry_run and not repair:
        raise click.UsageError("--dry-run needs --repair")
    if repair:
        _repair(ctx, dry_run=dry_run, as_json=as_json)
    facts = gather(ctx.obj.app, fleet=not no_fleet, answers_within_s=timeout)
    found = [finding for finding in check(facts) if finding.id not in ignore]
    code = exit_code(found, strict)
    if as_json:
        print_json({"exit_code": code, **outcome_as_json(facts, found)})
    else:
        click.echo(text.findings(facts, found))
    ctx.exit(code)


def _repair(ctx: click.Context, *, dry_run: bool, as_json: bool) -> NoReturn:
    asked = asked_of(ctx, lambda scheduler: scheduler.repair(thorough=True, says_only=dry_run))
    found = [
        f"cohort {name}: {each}" if asked.is_split else each for name, its in asked.answers.items() for each in its
    ]
    if as_json:
        print_json({"found": found, "repaired": not dry_run})
    else:
        for each in found:
            click.echo(printable(each))
        did = "nothing was changed" if dry_run else "all was repaired"
        click.echo(f"{len(found)} found: {did}" if found else "All keys agree: there is nothing to repair.")
    ctx.exit(WARNED if (dry_run and found) or asked.down else FINE)


def exit_code(found: Sequence[Finding], strict: bool) -> int:
    levels = {finding.level for finding in found}
    if Level.ERROR in levels:
        return FAILED
    return WARNED if strict and Level.WARNING in levels else FINE
