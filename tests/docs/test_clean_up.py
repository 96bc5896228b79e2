"""Each command of the page on cleaning up is run, on a real server, and does what the page says."""

import os
import shlex
import subprocess
import sys
from string import Template

import pytest

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.pages import blocks, commands
from ..support.processes import ROOT, run_celery
from ..support.scripted_fleet import ScriptedFleet

PAGE = "docs/how-to/cancel-move-replay.md"

#: The app of the page: its task, by the name that the page has.
SHOP = """
from celery import Celery
app = Celery("shop", broker={url!r}, backend={url!r})
app.conf.broker_transport = "celery_affinity:Transport"


@app.task(affinity="pdf")
def render(page):
    return page
"""


@pytest.fixture
def fleet(valkey, redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


@pytest.fixture
def run(valkey, tmp_path):
    """Return a function that runs a block of the page, console or Python, and returns what the last command printed."""
    (tmp_path / "shop.py").write_text(SHOP.format(url=valkey.url))
    page = blocks(PAGE)

    def python(code):
        env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        return subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout

    def run(block, **names):
        if not page[block].startswith("$"):
            return python(f"from shop import render\nprint({page[block]})")
        for program, *words in commands(Template(page[block]).safe_substitute(names)):
            assert program == "celery"
            done = run_celery(*words, env=os.environ, cwd=tmp_path)
            assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


def test_every_command_of_the_page(fleet, run):
    scheduler = fleet.scheduler
    mine = run("stamped").strip()
    fleet.publish("other", "pdf")
    assert "customer" not in run("look", ID=mine)
    assert "wrong template" in run("hold")
    run("customer")
    assert scheduler.reader.pending("pdf") == 1
    scheduler.publish(*fleet.made(["keyed!"], "pdf", rules="key=customer%3Aacme limit=1"))
    assert "1 done" in run("keyed")
    assert fleet.state("keyed!") == "revoked"
    run("cancel", ID=run("stamped").strip())
    assert scheduler.reader.pending("pdf") == 1  # that of another task
    scheduler.resume("type:pdf")
    fleet.publish("lost", "pfd")
    fleet.publish("later", "pdf", delay_s=600)
    assert "1 done" in run("move", SCHEDULED="task-later")
    assert scheduler.reader.pending("pdf") == 2
    run("purge")
    assert fleet.state("later") is None
    for number in range(2):
        fleet.bury(f"dead{number}", "tomb")
    run("dead")
    assert "no job matches" in run("ended")
    assert [fleet.state(f"dead{number}") for number in range(2)] == ["dead", "dead"]
