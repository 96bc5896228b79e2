"""``celery -A proj affinity check``: report errors and risks with their fixes, or repair the keys in Redis."""

import textwrap
from collections.abc import Sequence
from typing import NoReturn

import click

from ..check import LEVELS, Facts, Finding, Level, check
from ..check.gather import gather_facts
from ..reports.json import as_json as as_json_of
from ..reports.render import pluralize, printable_cell
from .framework import SecondsRange, answers_of, command, print_json

_COLOURS = {Level.ERROR: "red", Level.WARNING: "yellow", Level.NOTE: "cyan"}


def findings_text(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return a check as text: the checked app, server and workers, the findings, and their number by level."""
    return "\n\n".join([_subject(facts), *map(_finding_text, findings), _counts(findings)])


def _subject(facts: Facts) -> str:
    server, fleet = facts.server, facts.fleet
    parts = [f"app {facts.app.name}", f"broker {facts.app.broker}"]
    if server is not None and server.refused is None:
        parts.append(f"{server.kind} {'.'.join(map(str, server.version))}")
    if fleet is not None:
        answered = pluralize(len(fleet.answers), "worker")
        parts.append(f"{len(fleet.members)} alive, {answered} answered")
    else:
        parts.append("workers not checked")
    return printable_cell(", ".join(parts))


def _finding_text(finding: Finding) -> str:
    head = click.style(f"{finding.level.upper():8}{finding.id}", fg=_COLOURS[finding.level], bold=True)
    lines = [*_wrapped(finding.what, ""), *_wrapped(finding.todo, "-> ")]
    return "\n".join([head, *lines])


def _wrapped(text: str, mark: str) -> list[str]:
    return textwrap.wrap(
        printable_cell(text),
        width=100,
        initial_indent=" " * 8 + mark,
        subsequent_indent=" " * (8 + len(mark)),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _counts(findings: Sequence[Finding]) -> str:
    if not findings:
        return "no findings"
    return ", ".join(pluralize(sum(finding.level is level for finding in findings), level) for level in Level)


#: Exit codes. An invalid command line also ends with 2.
FINE, WARNED, FAILED = 0, 1, 2


@command("check", json=True)
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

    Exits with 2 if there are errors, with 1 if there are warnings and --strict is given, and otherwise with 0.

    With --repair, compare counts, heads and free slots in Redis with the claims and lanes that they are computed from,
    and correct them. The fleet can keep running. Exits with 1 if --dry-run finds something, and otherwise with 0.
    """
    if dry_run and not repair:
        raise click.UsageError("--dry-run needs --repair")
    if repair:
        _repair(ctx, dry_run=dry_run, as_json=as_json)
    facts = gather_facts(ctx.obj.app, fleet=not no_fleet, answers_within_s=timeout)
    findings = [finding for finding in check(facts) if finding.id not in ignore]
    code = exit_code(findings, strict)
    if as_json:
        fleet = facts.fleet
        workers = fleet and sorted({*(one.name for one in fleet.members), *(one.name for one in fleet.answers)})
        outcome = {
            "exit_code": code,
            "app": facts.app.name,
            "broker": facts.app.broker,
            "server": facts.server is not None,
            "workers": workers,
            "findings": findings,
        }
        print_json(as_json_of(outcome))
    else:
        click.echo(findings_text(facts, findings))
    ctx.exit(code)


def _repair(ctx: click.Context, *, dry_run: bool, as_json: bool) -> NoReturn:
    reply = answers_of(ctx, lambda scheduler: scheduler.repair(thorough=True, says_only=dry_run))
    repairs = [
        f"cohort {name}: {line}" if reply.is_split else line for name, lines in reply.answers.items() for line in lines
    ]
    if as_json:
        print_json({"found": repairs, "repaired": not dry_run})
    else:
        for line in repairs:
            click.echo(printable_cell(line))
        did = "nothing was changed" if dry_run else "all was repaired"
        click.echo(f"{len(repairs)} found: {did}" if repairs else "All keys agree: there is nothing to repair.")
    ctx.exit(WARNED if (dry_run and repairs) or reply.down else FINE)


def exit_code(findings: Sequence[Finding], strict: bool) -> int:
    levels = {finding.level for finding in findings}
    if Level.ERROR in levels:
        return FAILED
    return WARNED if strict and Level.WARNING in levels else FINE
