"""The quickstart, pasted into a bash line by line: each command prints the output on the page."""

import os
import re
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from celery_affinity.versions import SOURCE

from ..support.pages import blocks, commands
from ..support.processes import ROOT, Process

PAGE = "docs/quickstart.md"
HERE = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}

#: What differs from run to run -> what stands for it.
_VARIES = {
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "TASK_ID",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "MOMENT",
    r"at that time: [0-9]$": "at that time: NOT_ALL",
    r"\d+ min \d+ s\b": "0.0 s",  # on a slow machine
    r" p95 wait \S+ s\.": "",  # from the first point of the history with a start of a job
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
def bash(tmp_path):
    shell = Bash(tmp_path, HERE)
    yield shell
    shell.close()


def test_each_command_prints_what_the_quickstart_shows(bash, tmp_path):
    page = blocks(PAGE)
    (pip,) = commands(page.pop("install"))
    assert pip == ["pip", "install", f"celery-affinity[embedded,web] @ {SOURCE}"]
    docker, *own = commands(page.pop("docker"))
    assert "--detach" in docker, "the next command can be pasted as well"
    assert own[0] == ["unset", "REDIS_URL"]
    for name, text in page.items():
        if name.endswith(".py"):
            (tmp_path / name).write_text(text)
    (up,) = commands(page["up"])
    begun = Process("up", [sys.executable, "-m", *up, "--port", "0"], {"PYTHONUNBUFFERED": "1"}, cwd=tmp_path)
    begun.wait_for("has to change.", 60)
    first = next(line for line in begun.log().splitlines() if line.startswith("up:"))
    assert alike(first) == alike(page.pop("up").splitlines()[-1])
    server = re.search(r"the server at (redis:\S+);", first)[1]
    (export,) = commands(page.pop("address"))
    assert export[0] == "export"
    assert export[1].startswith("REDIS_URL=redis://")
    assert bash.paste(f"export REDIS_URL={server}").strip() == ""
    done = 0
    for name, text in steps(page):
        if name.startswith("$ "):
            found = bash.paste(name.removeprefix("$ "))
            assert alike(found) == alike(text), f"{name} printed:\n{found}"
            done += 1
    assert done >= 10
    begun.term()
    assert begun.wait(30) == 0, begun.log()


def test_the_loop_that_waits_for_the_workers_ends_if_a_worker_died(bash):
    (line,) = [line for line in blocks(PAGE)["workers"].splitlines() if line.startswith("$ for")]
    loop = line.removeprefix("$ ").replace("celery -A shop affinity status", "echo").replace("sleep 1", "sleep 0.01")
    assert bash.paste(loop).strip() == ""
