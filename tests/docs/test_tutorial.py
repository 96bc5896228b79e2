"""The tutorial, pasted into a bash line by line: each command prints what the page shows."""

import os
import re
import shlex
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from celery_affinity.versions import SOURCE

from ..support.pages import blocks, commands
from ..support.processes import ROOT, Process

PAGE = "docs/tutorial.md"
HERE = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}

#: What differs from run to run -> what stands for it.
_VARIES = {
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "TASK_ID",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "MOMENT",
    r"for-the-user\.pdf by (specialist|versatile)@": "for-the-user.pdf by WORKER@",
    r"by then: [0-5]$": "by then: A_FEW",
    r"127\.0\.0\.1:\d+": "HOST:PORT",
    r"\d+\.\d+": "FRACTION",
    r" {2,}": "  ",
    r" +$": "",
}


def alike(text):
    text = text.replace(socket.gethostname(), "laptop").strip()
    for pattern, name in _VARIES.items():
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text


def steps(page):
    """Return the files and the command lines of the page in its order: name and text, or "$ ..." and what it prints."""
    for name, text in page.items():
        if name.endswith(".py"):
            yield name, text
        else:
            for each in re.split(r"^(?=\$ )", text, flags=re.MULTILINE)[1:]:
                command, _, printed = each.partition("\n")
                yield command, printed


class Bash:
    """A shell that is given one line after the other."""

    def __init__(self, directory, env):
        self._directory = directory
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=directory,
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def paste(self, line):
        """Return what *line* prints."""
        end = uuid.uuid4().hex
        self._shell.stdin.write(f"{line}\necho; echo {end}\n")
        self._shell.stdin.flush()
        printed = ""
        for each in self._shell.stdout:
            if each.strip() == end:
                return printed
            printed += each
        raise EOFError(printed)

    def close(self):
        self._shell.stdin.write("kill $(jobs -p) 2>/dev/null; wait\n")
        self._shell.stdin.close()
        self._shell.wait(60)
        self._shell.stdout.close()


@pytest.fixture
def bash(valkey, redis_client, tmp_path):
    shell = Bash(tmp_path, {**HERE, "REDIS_URL": valkey.url})
    yield shell
    shell.close()


def test_each_command_prints_what_the_tutorial_shows(bash, tmp_path):
    page = blocks(PAGE)
    docker, pip = commands(page.pop("install"))
    assert "--detach" in docker, "what follows can be pasted as well"
    assert pip == ["pip", "install", f"celery-affinity @ {SOURCE}"]
    page = {name: text for name, text in page.items() if not name.startswith("up")}
    done = 0
    for name, text in steps(page):
        if name.startswith("$ "):
            found = bash.paste(name.removeprefix("$ "))
            assert alike(found) == alike(text), f"{name} printed:\n{found}"
            done += 1
        else:
            (tmp_path / name).write_text(text)
    assert done >= 10


def test_without_a_server_the_same_programs_run_on_the_one_that_up_starts(tmp_path):
    page = blocks(PAGE)
    for name in ("shop.py", "one.py"):
        (tmp_path / name).write_text(page[name])
    _, up = commands(page["up"])
    begun = Process("up", [sys.executable, "-m", *up, "--port", "0"], {"PYTHONUNBUFFERED": "1"}, cwd=tmp_path)
    begun.wait_for("has to change.", 60)
    first = next(line for line in begun.log().splitlines() if line.startswith("up:"))
    assert alike(first) == alike(page["up"].splitlines()[-1])
    server = re.search(r"the server at (redis:\S+);", first)[1]
    shell = Bash(tmp_path, HERE)
    for name, text in steps({"up-one": page["up-one"]}):
        shown = shlex.split(name)[-1]
        line = f"export REDIS_URL={server}" if shown.startswith("REDIS_URL=") else name.removeprefix("$ ")
        assert alike(shell.paste(line)) == alike(text)
    shell.close()
