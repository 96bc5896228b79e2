"""The docs tell the truth: examples are run, and tables are compared with the code."""

import re
import shlex
from pathlib import Path

import click
import kombu
import pytest
import redis
from celery import Celery
from celery.exceptions import Retry
from kombu.utils.json import loads

from celery_affinity.cli import explain_text
from celery_affinity.clock import SECOND_US
from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.policy.score import MICRO, Weights, score
from celery_affinity.reports.explain import explain
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys
from celery_affinity.settings import wire

from ..support.clocked import ClockedReader
from ..support.command import affinity
from ..support.messages import running
from ..support.pages import blocks, commands
from ..support.scripted_fleet import ScriptedFleet

ROOT = Path(__file__).parents[2]

EXPLAINED = """\
task        task-job  tests.task
state       pending since 2027-01-15 08:00:06 (42.0 s)
needs       type pdf, priority 5, queued
score       5,958.7 = 5,120.0 priority + 672.0 age + 166.7 rarity (3 slots that fit)
rank        13 of its type, 16 of all jobs that its slots could take
ahead       3 of excel priority 0 on demand, 12 of pdf priority 8
slots       [pdf]: 2 slots on 1 worker, 0 free
            [excel pdf]: 1 slot on 1 worker, 0 free
blocked by  all 3 slots that fit are busy or draining
overtaken   from 2027-01-15 08:18:45 on, newly published jobs can no longer take a slot that this job could use (while \
no rule blocks it)
wait        32.0 s more, estimated from recent run times
"""


def test_the_order_in_which_a_queue_is_named(valkey, redis_client):
    """Of the rows of the table and all that follow, the first match counts."""
    page = (ROOT / "docs/reference/options.md").read_text()
    table = page.partition("## The type, with examples")[2].partition("## Misspelt options")[0]
    rows = {
        int(number): re.findall(r"`([^`]+)`", cell)
        for number, cell in re.findall(r"^\| (\d) .*\| (.+) \|$", table, re.M)
    }
    calls, (retry,), (by_route,), (by_task,), (by_pattern,), (by_celery,) = (rows[number] for number in sorted(rows))

    def published(first, publish=lambda render: render.delay()):
        app = Celery("docs", broker=valkey.url, set_as_current=False)
        settings, names = {"task_routes": {}, "affinity_task_types": {}}, {"app": app, "__name__": "docs"}
        for number, code in enumerate((by_route, by_pattern, by_celery)):
            said = {}
            exec(code, {}, said)
            ((name, value),) = said.items()
            if first <= (3, 5, 6)[number]:
                settings[name] = {
                    task: {**options, **settings[name].get(task, {})} if isinstance(options, dict) else options
                    for task, options in value.items()
                }
        app.conf.update(broker_transport="celery_affinity:Transport", task_ignore_result=True, **settings)
        decorator = by_task if first <= 4 else by_task.replace(', affinity="task"', "")
        exec(f"{decorator.removesuffix(')')}, shared=False)\ndef render(): ...", names)
        publish(names["render"])
        (job,) = redis_client.scan_iter("*job:*")
        type_ = redis_client.hget(job, "type").decode()
        message = loads(redis_client.get(job.replace(b"job:", b"message:")).decode())
        redis_client.flushdb()
        app.close()
        return type_, message

    assert len(calls) == 2
    for call in calls:
        assert published(1, lambda render, call=call: eval(call, {"render": render}))[0] == "caller"
    _, first_attempt = published(1, lambda render: render.apply_async(affinity="first"))

    def tried_again(render):
        with running(render, first_attempt), pytest.raises(Retry):
            eval(retry, {"self": render})

    assert published(2, tried_again)[0] == "first"
    assert [published(number)[0] for number in (3, 4, 5, 6)] == ["route", "task", "pattern", "celery-route"]


def points(priority, age_s, on_demand=False, slots=1):
    return score(priority, on_demand, age_s * SECOND_US, slots, Weights()).total / MICRO


def test_the_scores_have_the_relations_that_the_scheduling_page_states():
    # A fresh P5 wins against a P0 that is 319 s old, ties at 320 s (the older is first), loses at 321 s.
    assert points(5, 0) > points(0, 319)
    assert points(5, 0) == points(0, 320)
    assert points(5, 0) < points(0, 321)
    # A queued P0 older than 256 s precedes a fresh on-demand P0.
    assert points(0, 256) == points(0, 0, on_demand=True)
    # An on-demand job gains 48 points per second until 256 s, then 16 like all others.
    assert points(0, 101, on_demand=True) - points(0, 100, on_demand=True) == 48
    assert points(0, 301, on_demand=True) - points(0, 300, on_demand=True) == 16
    # Rarity: one slot, two, four, eight.
    assert [points(0, 0, slots=n) for n in (1, 2, 4, 8)] == [500, 250, 125, 62.5]


def test_the_scheduling_page_states_what_the_code_computes():
    page = (ROOT / "docs/explanation/scheduling.md").read_text()
    assert f"{wire.overtaking_seconds(0, False, Weights()):,} s for P0" in page
    assert f"{wire.overtaking_seconds(0, True, Weights()):,} s for P0" in page
    minutes = 2 * wire.overtaking_seconds(0, False, Weights()) / 60  # twice the slots' load arrives
    assert f"{minutes:.0f} minutes at most" in page.replace("\n", " ")


def test_explain_prints_each_line_that_the_reference_explains(valkey, redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.join("one", "pdf", slots=2)
    fleet.join("two", "pdf", "excel")
    for number in range(4):
        fleet.publish(f"busy{number}", "pdf")
    claim, _ = fleet.inbox("one")
    fleet.scheduler.advance(6)
    fleet.end("one", claim)
    fleet.hand_over("one")
    for number in range(12):
        fleet.publish(f"urgent{number}", "pdf", priority=8)
    for number in range(3):
        fleet.publish(f"asked{number}", "excel", on_demand=True)
    fleet.publish("job", "pdf", priority=5)
    fleet.scheduler.advance(42)
    found = click.unstyle(explain_text.explanation_text(explain(ClockedReader(fleet.scheduler), "task-job")))
    moment = re.compile(r"\d{4}-\d\d-\d\d \d\d:")  # the hour is that of a time zone
    assert moment.sub("", found) == moment.sub("", EXPLAINED.rstrip("\n"))
    page = (ROOT / "docs/reference/commands.md").read_text()
    explained = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`\w+`.*?) \|", page, re.MULTILINE))))
    assert {"score", "rank", "ahead", "slots", "overtaken", "wait"} <= explained


def test_the_commands_for_settings_and_waiting_jobs_work(valkey, redis_client):
    page = (ROOT / "docs/reference/settings.md").read_text()
    commands_shown = [shlex.split(line, comments=True)[5:] for line in page.splitlines() if line.startswith("$ celery")]
    assert len(commands_shown) == 4
    task_id = "3d1f0f0a-6f0c-4a53-9a61-0f4a6c3c1c9e"
    commands_shown += [["explain", task_id], ["pending"], ["pending", "pdf", "excel"], ["top", "--count", "1"]]
    ScriptedFleet(Scheduler(redis_client, Keys())).publish("job", "pdf", task_id=task_id)
    for words in commands_shown:
        run = affinity(valkey.url, *words)
        assert run.returncode == 0, f"{words}: {run.stderr}"


def test_the_ways_to_publish_a_lot(valkey, redis_client, monkeypatch):
    page = blocks("docs/how-to/throughput.md")
    app = Celery("docs", broker=valkey.url)
    app.conf.update(broker_transport="celery_affinity:Transport", task_ignore_result=True)

    @app.task(shared=False, affinity="pdf")
    def render(path):
        return path

    @app.task(shared=False, affinity="index")
    def index(path):
        return path

    def calls():
        yield from ((f"page-{number}.pdf",) for number in range(1200))

    def unsure(self, *jobs):
        publish(self, *jobs)
        if len(jobs) < 500:
            monkeypatch.undo()
            raise redis.ConnectionError("gone")
        return publish(self, *jobs)  # again: known by now

    def pending():
        return {each.type: each.pending for each in Report(Reader(redis_client, Keys())).status().types}

    names = {"app": app, "render": render, "index": index, "calls": calls}
    exec(page["publish_many"], names)
    assert names["first"].id == names["ids"][0]
    assert pending() == {"pdf": 1000}
    publish = Scheduler.publish
    monkeypatch.setattr(Scheduler, "publish", unsure)
    app.conf.task_publish_retry = False
    exec(page["resume"], names)
    assert pending() == {"pdf": 2200}
    if kombu.VERSION[:2] >= (5, 7):
        exec(page["batch"], names)
        assert pending() == {"pdf": 3200, "index": 1000}
    app.close()


def test_the_readmes_commands_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    targets = [words[1] for words in commands((ROOT / "README.md").read_text()) if words[0] == "make"]
    assert targets == ["demo", "test", "routes", "lab"]
    for target in targets:
        assert f"\n{target}:" in makefile


def test_links_lead_somewhere():
    for page in [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
