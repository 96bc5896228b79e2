"""The README: its app and its calls run as they stand there, and what it says is what the program says."""

import re
import sys

from celery_affinity.check.server import TESTED

from ..support.pages import blocks, missing_lines
from ..support.processes import ROOT
from ..support.readme_example import run_the_readme

README = ROOT / "README.md"
FIRST_SCREEN = 40  # lines


def test_the_app_its_workers_and_its_calls_run_as_they_are_shown(valkey, redis_client, tmp_path):
    said = run_the_readme(sys.executable, valkey.url, tmp_path, (ROOT,))
    assert missing_lines("specialist pdf 4\nversatile excel,index,pdf 2", said.replace("@", " ")) == []


def test_code_is_in_the_first_screen():
    text = README.read_text()
    first = text.splitlines()[:FIRST_SCREEN]
    assert any("broker_transport" in line for line in first)
    assert any("affinity explain" in line for line in first)


def test_the_output_of_explain_is_that_of_the_page_which_a_test_compares_with_the_command():
    command, *shown = blocks("README.md")["explain"].splitlines()
    assert command == "$ celery -A shop affinity explain report-7"
    assert len(shown) == 8
    whole = blocks("docs/how-to/troubleshooting.md")["one-task"].splitlines()
    assert [line for line in whole if line in shown] == shown


def test_the_pages_name_the_servers_that_check_accepts():
    wanted = {"Redis": TESTED["redis"], "Valkey": TESTED["valkey"]}
    for page in (README, ROOT / "docs/how-to/upgrade.md"):
        named = re.findall(r"(Redis|Valkey) (\d+\.\d+)", page.read_text())
        found = dict(reversed(named))  # what a page says first: it may go on with what was run
        assert {kind: tuple(map(int, number.split("."))) for kind, number in found.items()} == wanted, page
