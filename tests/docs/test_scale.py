"""The recipes of the page on scaling name what there is."""

import json

import pytest
import yaml

from celery_affinity.cli.scale import scale_in
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys
from celery_affinity.web import asgi

from ..support.apps import APP
from ..support.pages import blocks
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


def test_the_hook_is_a_command_that_there_is():
    hook = yaml.safe_load(blocks(PAGE)["pre-stop.yml"])["lifecycle"]["preStop"]["exec"]["command"]
    words = hook[2].split()
    assert words[:5] == ["celery", "-A", "shop", "affinity", "scale-in"]
    given = scale_in.make_context("scale-in", words[5:], resilient_parsing=True).params
    assert (given["drain"], given["worker"], given["wait"]) == (True, "celery@$HOSTNAME", 3600)
