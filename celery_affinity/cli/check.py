"""``celery -A proj affinity check``: say what is wrong or risky, and how to mend it."""

from collections.abc import Sequence

import click
from celery.bin.base import CeleryCommand, handle_preload_options

from ..check import LEVELS, Finding, Level, check
from ..check.as_json import as_json as outcome_as_json
from ..check.gather import gather
from . import text
from .broker import AS_JSON, print_json

#: Exit codes. An unreadable command line ends with 2 as well.
FINE, WARNED, FAILED = 0, 1, 2


@click.command("check", cls=CeleryCommand)
@click.option("--strict", is_flag=True, help="End with 1 if there are warnings.")
@click.option("--no-fleet", is_flag=True, help="Look at app and server alone: where no workers run, as in CI.")
@click.option("--ignore", metavar="ID", multiple=True, type=click.Choice(sorted(LEVELS)), help="Leave this out.")
@click.option(
    "--timeout",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Seconds that workers are given to answer.",
)
@AS_JSON
@click.pass_context
@handle_preload_options
def check_command(
    ctx: click.Context, strict: bool, no_fleet: bool, ignore: tuple[str, ...], timeout: float, as_json: bool
) -> None:
    """Look at app, server and fleet, and say what is wrong or risky.

    Ends with 2 if there are errors, with 1 if there are warnings and --strict is given, else with 0.
    """
    facts = gather(ctx.obj.app, fleet=not no_fleet, answers_within_s=timeout)
    found = [finding for finding in check(facts) if finding.id not in ignore]
    code = exit_code(found, strict)
    if as_json:
        print_json({"exit_code": code, **outcome_as_json(facts, found)})
    else:
        click.echo(text.findings(facts, found))
    ctx.exit(code)


def exit_code(found: Sequence[Finding], strict: bool) -> int:
    levels = {finding.level for finding in found}
    if Level.ERROR in levels:
        return FAILED
    return WARNED if strict and Level.WARNING in levels else FINE
