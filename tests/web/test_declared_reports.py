"""Each declared report: its command and its route give the same JSON, and its command prints text."""

import json

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_affinity.cli import affinity
from celery_affinity.reports import REPORTS
from celery_affinity.reports.report import find_report

ROUTES = {name: find_report(name).path for name in REPORTS if find_report(name).path}
COMMANDS = [name for name in REPORTS if find_report(name).text is not None]


@pytest.fixture
def run(app):
    def run(*words):
        context = CLIContext(app=app, no_color=True, workdir=None)
        done = CliRunner().invoke(affinity, words, obj=context, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


@pytest.fixture
def busy(fleet):
    """A fleet whose state gives most reports at least one row."""
    fleet.join("worker", "pdf", slots=1)
    fleet.bury("buried", "mail")
    fleet.publish("held!", "pdf", rules="key=city%3AHH limit=1")
    fleet.publish("waits!", "pdf", rules="key=city%3AHH limit=1")
    fleet.publish("next", "pdf", due="w1000000")
    fleet.scheduler.pause("type:mail", for_s=None, why="")
    return fleet


def without_times(value):
    """Return *value* without the numbers that change with time."""
    if isinstance(value, dict):
        return {
            name: without_times(part) for name, part in value.items() if not name.endswith(("_s", "score", "waiting"))
        }
    return [without_times(part) for part in value] if isinstance(value, list) else value


def test_command_and_route_return_the_same_json(busy, web, run, subtests):
    for name in set(COMMANDS) & set(ROUTES):
        with subtests.test(name):
            reply = web.get(ROUTES[name])
            assert reply.status_code == 200, reply.text
            assert without_times(reply.json()) == without_times(json.loads(run(*name.split(), "--json")))


def test_each_command_prints_text_and_each_route_replies(busy, web, run, subtests):
    for name in COMMANDS:
        with subtests.test(name):
            assert run(*name.split()).strip()
    for name, path in ROUTES.items():
        with subtests.test(name):
            assert web.get(path).status_code == 200


def test_route_rejects_an_invalid_choice(busy, web):
    reply = web.get("/api/dead", params={"reason": "tired"})
    assert reply.status_code == 400
    assert "reason must be one of" in reply.json()["error"]["message"]


def test_limits_of_a_number_differ_between_command_and_route(busy, web, run):
    assert run("dead", "list", "--limit", "1001")
    assert web.get("/api/dead", params={"limit": 1001}).status_code == 400
