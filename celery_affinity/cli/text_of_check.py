"""The output of ``celery affinity check`` for people."""

import textwrap
from collections.abc import Sequence

import click

from ..check import Facts, Finding, Level
from .words import many, printable

_COLOURS = {Level.ERROR: "red", Level.WARNING: "yellow", Level.NOTE: "cyan"}


def findings(facts: Facts, found: Sequence[Finding]) -> str:
    """Return a check as text: the app, server and workers that were asked, the findings, and their number by level."""
    blocks = [_looked_at(facts), *(_finding(each) for each in found), _counts(found)]
    return "\n\n".join(blocks)


def _looked_at(facts: Facts) -> str:
    server, fleet = facts.server, facts.fleet
    parts = [f"app {facts.app.name}", f"broker {facts.app.broker}"]
    if server is not None and server.refused is None:
        parts.append(f"{server.kind} {'.'.join(map(str, server.version))}")
    if fleet is not None:
        answered = many(len(fleet.answers), "worker")
        parts.append(f"{len(fleet.members)} alive, {answered} answered")
    else:
        parts.append("workers not checked")
    return printable(", ".join(parts))


def _finding(each: Finding) -> str:
    head = click.style(f"{each.level.upper():8}{each.id}", fg=_COLOURS[each.level], bold=True)
    lines = [*_wrapped(each.what, ""), *_wrapped(each.todo, "-> ")]
    return "\n".join([head, *lines])


def _wrapped(text: str, mark: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        width=100,
        initial_indent=" " * 8 + mark,
        subsequent_indent=" " * (8 + len(mark)),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _counts(found: Sequence[Finding]) -> str:
    if not found:
        return "no findings"
    return ", ".join(many(sum(each.level is level for each in found), level) for level in Level)
