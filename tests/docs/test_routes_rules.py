"""`python -m examples.routes.rules`, run as a user runs it: the drawn timelines follow the rules in the titles."""

import os
import re
import subprocess
import sys

import pytest

from ..support.made_once import made_once
from ..support.processes import ROOT


def _run(folder):
    env = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    command = [sys.executable, "-m", "examples.routes.rules"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "printed").write_text(done.stdout)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Return the scenes: title -> name of the row -> its drawn lines."""
    printed = (made_once(tmp_path_factory, "routes-rules", _run) / "printed").read_text()
    found = {}
    for block in printed.split("\n\n")[1:]:
        title, *lines = block.splitlines()
        rows = found[title.partition(":")[0]] = {}
        for line in lines:
            if not line.startswith("  $ "):
                name = line[2:10].strip() or [*rows][-1]  # the lines below belong to the same row
                rows.setdefault(name, []).append(line[11:])
    return found


def signs(line):
    """Return the distinct letters of a line in order."""
    return "".join(dict.fromkeys(re.sub(" ", "", line)))


def test_jobs_of_one_city_never_overlap(scenes):
    rows = scenes["exclusive"]
    assert {name: len(lines) for name, lines in rows.items()} == {"Hamburg": 1, "Bremen": 1, "Kiel": 1}
    assert sorted("".join(signs(lines[0]) for lines in rows.values())) == list("ABCDEFGH")
    assert min(len(rows[name][0]) for name in ("Bremen", "Kiel")) < len(rows["Hamburg"][0])


def test_limit_of_two_gives_two_lines(scenes):
    (lines,) = scenes["a limit, changed at run time"].values()
    assert len(lines) == 2
    assert sorted("".join(map(signs, lines))) == list("ABCD")


def test_rate_starts_four_jobs_and_then_four_per_second(scenes):
    (lines,) = scenes["rate"].values()
    assert sorted("".join(map(signs, lines))) == list("ABCDEFGH")
    begins = sorted(line.index(sign) for line in lines for sign in signs(line))
    assert begins[7] - begins[0] >= 9, "four more need a second"


def test_retry_runs_before_later_jobs(scenes):
    ((line,),) = scenes["keep_order"].values()
    assert signs(line) == "ABC"
    assert re.search(r"A {2,}B", line), "the time until the retry"


def test_other_jobs_run_during_a_pause(scenes):
    rows = scenes["a pause"]
    ends_of_traffic = min(len(line) for line in rows["traffic"])
    assert min(len(line) - len(line.lstrip()) for line in rows["route"]) >= ends_of_traffic
