"""The reference shows what each command prints: this runs them all on one fleet, at a time that the test passes in."""

import os
import re
import subprocess
import sys
import time

import httpx
import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_affinity.cli import affinity
from celery_affinity.clock import SECOND_US
from celery_affinity.lab.scripts_engine import CLOCKED, FakeClockScheduler
from celery_affinity.options.recurring import RecurringCall
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys
from docs.pages.outputs import OUTPUTS, PROMPT, sections

from ..support.apps import app_for
from ..support.processes import ROOT, Process, wait_until
from ..support.scripted_fleet import ScriptedFleet

FOUND = ROOT / "build" / "outputs.txt"

#: Commands that go on, or ask real workers -> words for the test alone: ports, and time for answers.
STARTED = {
    f"{PROMPT}up": ["--port", "0"],
    f"{PROMPT}check --ignore hiredis": ["--timeout", "5"],
    f"{PROMPT}web": ["--port", "0"],
}

#: The app of the commands that are started.
APP = """
from celery import Celery

app = Celery("shop")
app.conf.broker_transport = "celery_affinity:Transport"

@app.task(affinity="pdf")
def render(page):
    return f"{page} rendered"
"""


@pytest.fixture
def fleet(valkey, redis_client, monkeypatch):
    """A shop: two pdf slots and a versatile one, all busy; a key, a recurring call, dead letters."""
    clock = FakeClockScheduler(redis_client, Keys())
    monkeypatch.setattr(Scheduler, "library", CLOCKED)
    monkeypatch.setattr(Reader, "now_us", lambda self: clock.now_us)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield Shop(clock)
    monkeypatch.undo()
    time.tzset()


class Shop(ScriptedFleet):
    def call(self, task_id, type_, task, **fields):
        mark = "!" if "rules" in fields else ""
        self.scheduler.publish(NewJob(f"{task_id}{mark}", type_, "{}", task_id=task_id, task_name=task, **fields))

    def fill(self):
        self.scheduler.declare_recurring(
            [RecurringCall("plan-hamburg", "shop.plan", "route", "Hamburg", 300 * SECOND_US, signature="{}")],
            app="shop",
        )
        self.join("bad", "pdf")
        for number, why in enumerate(("ValueError: no such page", "NotRegistered: 'shop.rendr'")):
            self.call(f"invoice-{number}", "pdf", "shop.render")
            (claim,) = self.inbox("bad")
            self.scheduler.advance(2)
            self.end("bad", claim, outcome=f"rejected {why}")
        self.scheduler.leave("bad")
        self.join("pdf1", "pdf", slots=2)
        for _ in range(4):
            self.call("invoice-done", "pdf", "shop.render")
            self.scheduler.advance(20)
            self.end("pdf1", *self.inbox("pdf1"))
        self.hand_over("pdf1")
        self.join("any1", "pdf", "index", slots=1)
        self.call("report-0", "index", "shop.rebuild", rules="key=customer%3Aacme limit=1")
        for number in range(2, 7):
            self.call(f"invoice-{number}", "pdf", "shop.render")
        self.scheduler.advance(31)
        self.call("report-1", "index", "shop.rebuild", rules="key=customer%3Aacme limit=1")
        self.call("drawing-1", "drawing", "shop.draw")
        self.call("report-july", "pdf", "shop.render", priority=8, delay_us=3600 * SECOND_US)
        self.scheduler.advance(9)
        self.call("offer-1", "pdf", "shop.render", on_demand=True)
        for worker, slots in {"pdf1": 2, "any1": 1}.items():
            held = [(*claim, 42 * SECOND_US) for claim in self.claims(worker).items()]
            self.scheduler.sync(worker, held, slots=slots, other=0, draining=False)
        self.scheduler.advance(2)


def run(app, line):
    """Return what a command prints; of a long one, its first lines."""
    words = line.removeprefix(PROMPT).split()
    done = CliRunner().invoke(affinity, words, obj=CLIContext(app=app, no_color=True, workdir=None))
    assert done.exception is None or isinstance(done.exception, SystemExit), (line, done.exception)
    return "\n".join(each.rstrip() for each in done.output.strip("\n").splitlines())


def test_each_command_prints_what_the_reference_shows(valkey, fleet):
    app = app_for(valkey.url, result_backend=valkey.url)
    fleet.fill()
    found = ""
    for line, shown in sections():
        printed = shown if line in STARTED else run(app, line)
        if shown.endswith("\n..."):
            printed = "\n".join([*printed.splitlines()[: shown.count("\n")], "..."])
        found += f"{line}\n{printed}\n\n"
    app.close()
    FOUND.parent.mkdir(exist_ok=True)
    FOUND.write_text(found.rstrip("\n") + "\n")
    assert OUTPUTS.read_text() == FOUND.read_text(), f"if what they print now is right: cp {FOUND} {OUTPUTS}, make docs"


def alike(text):
    """Return *text* without what differs from one start to the next: ports, and the version of the server."""
    return re.sub(r"valkey [0-9.]+", "valkey VERSION", re.sub(r"127\.0\.0\.1:[0-9]+", "127.0.0.1:PORT", text))


def test_commands_that_start_something_say_what_the_reference_shows(tmp_path):
    (tmp_path / "shop.py").write_text(APP)
    shown = {line: alike(printed) for line, printed in sections() if line in STARTED}
    commands = {
        line: [sys.executable, "-m", *line.removeprefix("$ ").split(), *words] for line, words in STARTED.items()
    }
    up, check, web = (f"{PROMPT}{words}" for words in ("up", "check --ignore hiredis", "web"))
    begun = Process("up", commands[up], {"PYTHONUNBUFFERED": "1"}, cwd=tmp_path)
    begun.wait_for("has to change.", 60)
    assert shown[up] in alike(begun.log()), begun.log()
    url, server = re.search(r"at (http:\S+), the server at (redis:\S+);", begun.log()).groups()
    wait_until(lambda: httpx.get(f"{url}/api/workers", timeout=30).json(), 60, "its worker joins")
    env = {"CELERY_BROKER_URL": server, "CELERY_RESULT_BACKEND": server, "PYTHONUNBUFFERED": "1"}
    checked = subprocess.run(
        commands[check], cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=True
    )
    assert alike(checked.stdout.rstrip()) == shown[check]
    serving = Process("web", commands[web], env, cwd=tmp_path)
    serving.wait_for("web ready", 60)
    assert alike(serving.log().rstrip()) == shown[web]
    ready = re.search(r"http:\S+", serving.log())[0]
    wait_until(lambda: httpx.get(f"{ready}/readyz", timeout=30).status_code == 200, 30, "what it says is true")
