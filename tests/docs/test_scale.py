"""The recipes of the page on scaling name what there is."""

import json
import os
import re
import shutil
import subprocess

import pytest
import yaml

from celery_affinity.scheduler.messages import JoinArguments
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings
from celery_affinity.web import asgi

from ..support.apps import APP
from ..support.command import affinity
from ..support.pages import blocks
from ..support.processes import ROOT
from ..support.scripted_fleet import ScriptedFleet
from ..web.conftest import Client

PAGE = "docs/how-to/scale.md"


@pytest.fixture
def web(valkey, redis_client, load_app):
    client = Client(asgi(load_app(APP)))
    yield client
    client.close()


def test_keda_finds_its_value_where_the_recipe_says(web, redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    for number in range(90):
        fleet.publish(f"job{number}", "pdf")
    (trigger,) = yaml.safe_load(blocks(PAGE)["scaled-object.yml"])["spec"]["triggers"]
    path = trigger["metadata"]["url"].partition(":5556")[2]
    assert web.get(path).json()[trigger["metadata"]["valueLocation"]] == 3
    (listed,) = web.get("/api/scale").json()
    assert listed == web.get("/api/scale/pdf").json()
    assert web.get("/api/scale/pdf?target_wait=0").status_code == 400
    assert json.loads(web.get("/api/scale/excel,pdf").text)["types"] == ["excel", "pdf"]


def test_prometheus_trigger_queries_an_existing_metric(web, redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("one", "pdf", slots=4)
    (query,) = re.findall(r"`query: max\((\w+\{.*?\})\)`", (ROOT / PAGE).read_text())
    assert f"\n{query} 0" in web.get("/metrics").text


@pytest.mark.skipif(not shutil.which("jq"), reason="the script of the page needs jq")
def test_pod_deletion_cost_is_the_number_of_held_jobs(valkey, redis_client, tmp_path):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    for number in range(3):
        fleet.publish(f"job{number}", "pdf")
    for worker, slots in (("busy", 2), ("less", 1), ("idle", 1)):
        join = JoinArguments(worker, f"pdf@pod-{worker}", ("pdf",), slots)
        fleet.scheduler.join(join, shared_settings(Settings()))
    pod = yaml.safe_load(blocks(PAGE)["pod-cost.yaml"])["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    status = tmp_path / "status.json"
    status.write_text(affinity(valkey.url, "status", "--json").stdout)
    for name, script in {"celery": f'echo "$@" >> "$CALLS"; cat {status}', "kubectl": 'echo "$@" >> "$CALLS"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    calls = tmp_path / "calls"
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls)}
    subprocess.run(container["command"], env=env, check=True)
    first, *annotations = calls.read_text().splitlines()
    assert first == "-A shop affinity status --json"
    cost = "--overwrite controller.kubernetes.io/pod-deletion-cost"
    expected = {f"annotate pod pod-busy {cost}=2", f"annotate pod pod-less {cost}=1", f"annotate pod pod-idle {cost}=0"}
    assert set(annotations) == expected
