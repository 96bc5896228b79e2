"""The checks before the first day of production: each command exists, with its options."""

import re
import shlex
from types import SimpleNamespace

import click
import pytest
from celery import Celery
from celery.bin.celery import celery as root

from ..support.processes import ROOT

PAGE = (ROOT / "docs/how-to/ready.md").read_text()
COMMANDS = sorted(set(re.findall(r"`(celery -A shop [^`]+)`", PAGE)))


def test_each_check_says_how_and_when_it_is_fine():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| check")]
    assert len(rows) >= 25
    for row in rows:
        check, how, fine = (cell.strip() for cell in re.sub(r"`[^`]*`", "x", row).strip("|").split(" | "))
        assert all((check, how, fine)), row


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_exists_with_its_options(command):
    words = shlex.split(command)[3:]
    context = click.Context(root, obj=SimpleNamespace(app=Celery(set_as_current=False)))
    found = root
    while isinstance(found, click.Group) and words and found.get_command(context, words[0]):
        found = found.get_command(context, words.pop(0))
    assert found is not root
    found.parse_args(click.Context(found, parent=context), words)
