"""`celery affinity scale` and `scale-in`, and the same over HTTP."""

import json
import re

import pytest

from celery_affinity.reports.scale import scale_of, scale_of_types
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.command import affinity
from ..support.fleet import Fleet
from ..support.processes import wait_until, wait_until_it_listens
from ..support.scripted_fleet import ScriptedFleet


@pytest.fixture
def scripted(valkey, redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("specialist", "pdf", slots=2)
    redis_client.hset(Keys().key("durations"), mapping={"pdf": 12_000_000, "excel": 60_000_000})
    return fleet


def scale(fleet, *types):
    status = Report(fleet.scheduler.reader).status()
    return {each.profile: each for each in ([scale_of(status, types)] if types else scale_of_types(status))}


def test_what_waits_and_runs_says_how_many_slots_there_should_be(valkey, scripted):
    for number in range(12):
        scripted.publish(f"job{number}", "pdf")
    run = affinity(valkey.url, "scale", "--json", "--target-wait", "12")
    (found,) = json.loads(run.stdout)
    assert (found["slots"], found["running"], found["waiting"], found["work_s"]) == (2, 2, 10, 144)
    assert (found["profile"], found["wanted_slots"]) == ("pdf", 12)
    assert scale(scripted)["pdf"].wanted_slots == 5
    assert re.search(r"^pdf +2 +2 +10.0 +144.0 s +5$", affinity(valkey.url, "scale").stdout, re.M)


def test_what_a_rule_keeps_back_is_no_need_for_slots(scripted):
    for number in range(12):
        scripted.publish(f"job{number}!", "pdf", rules="key=one limit=1")
    assert scale(scripted)["pdf"].wanted_slots == 1
    scripted.scheduler.pause("type:excel")
    for number in range(9):
        scripted.publish(f"excel{number}", "excel")
    assert scale(scripted, "excel")["excel"].wanted_slots == 0
    scripted.scheduler.resume("type:excel")
    assert scale(scripted)["excel"].wanted_slots == 9, "nobody serves it, and it can be asked for"
    scripted.scheduler.configure({"limits": "type%3Aexcel=2"})
    assert scale(scripted, "excel")["excel"].wanted_slots == 2


def test_a_type_of_several_groups_of_workers_is_shared_by_their_slots(scripted):
    scripted.join("versatile", "excel", "pdf", slots=6)
    for number in range(48):
        scripted.publish(f"job{number}", "pdf")
    found = scale(scripted)
    assert (found["pdf"].waiting, found["excel,pdf"].waiting) == (10, 30)


def test_the_worker_with_the_least_work_is_drained_and_said_to_be_empty(valkey, redis_client, tmp_path, load_app):
    fleet = Fleet(valkey, redis_client, tmp_path, load_app(APP))
    fleet.start("busy", "pdf", pool="threads", concurrency=2)
    fleet.tasks["pdf"].delay("held", 3600)
    wait_until(lambda: any(each.held for each in fleet.report.status().workers), 30, "it runs")
    fleet.start("idle", "pdf", pool="threads", concurrency=2)
    wait_until(lambda: len(fleet.report.status().workers) == 2, 30, "both are there")
    (idle,) = (each.name for each in fleet.report.status().workers if not each.held)
    wait_until_it_listens(fleet.app, "idle")
    assert affinity(valkey.url, "scale-in", "--profile", "pdf").stdout == f"{idle}\n"
    run = affinity(valkey.url, "scale-in", "--drain", "--profile", "pdf", "--wait", "20")
    assert (run.returncode, run.stdout, run.stderr) == (0, f"{idle}\n", "empty\n")
    run = affinity(valkey.url, "scale-in", "--drain", "--wait", "0.1")
    said = "no other worker serves pdf\n1 job(s) left\n"
    assert (run.returncode, run.stderr) == (1, said), "the next one, which works on"
    run = affinity(valkey.url, "scale-in", "--drain", "--wait", "0.1")
    assert (run.returncode, run.stderr) == (2, "no live worker can be removed\n")
    assert affinity(valkey.url, "scale-in", "--profile", "excel").returncode == 2


def test_the_last_worker_of_a_type_goes_last_and_that_is_said(scripted, valkey):
    scripted.join("a-versatile", "pdf", "excel")
    run = affinity(valkey.url, "scale-in")
    assert (run.stdout, run.stderr) == ("specialist@host\n", ""), "both are idle, and the other one is first by name"
    run = affinity(valkey.url, "scale-in", "--profile", "excel,pdf")
    assert (run.stdout, run.stderr) == ("a-versatile@host\n", "no other worker serves excel\n")


@pytest.mark.parametrize("wait", ["nan", "inf", "-1", "0"])
def test_a_target_wait_that_is_no_time_is_refused_with_the_range(valkey, wait):
    run = affinity(valkey.url, "scale", "--target-wait", wait)
    assert run.returncode == 2
    assert "1000000000" in run.stderr
