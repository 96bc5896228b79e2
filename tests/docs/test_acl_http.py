"""The rights that the page on HTTP names are enough, and an observer's are for looking alone."""

import pytest

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.apps import app_for
from ..support.scripted_fleet import ScriptedFleet
from ..web.conftest import Client


@pytest.fixture
def serve(as_user, redis_client, request):
    """Return a function: user of the page on rights -> a client of the HTTP interface with that user's rights."""
    from celery_affinity.web import asgi

    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("worker", "pdf")
    for name in ("one", "two", "three"):
        fleet.publish(name, "pdf")
    fleet.publish("keyed!", "pdf", rules="key=k limit=1")

    def serve(user, **options):
        app = app_for(as_user(user))

        @app.task(name="task", affinity="pdf", shared=False)
        def task():
            pass

        client = Client(asgi(app, **options))
        request.addfinalizer(client.close)
        return client

    return serve


def test_an_observer_may_look_and_change_nothing(serve):
    web = serve("observer")
    for path in (
        "/api/status",
        "/api/jobs",
        "/api/jobs?limit=1",
        "/api/jobs/task-one",
        "/api/jobs/task-two?explain=1",
        "/api/keys",
        "/api/tenants",
        "/api/settings",
        "/api/dead",
        "/metrics",
        "/readyz",
    ):
        assert web.get(path).status_code == 200, f"{path}: {web.get(path).text}"
    for call in (("POST", "/api/types/pdf/pause"), ("POST", "/api/jobs"), ("DELETE", "/api/jobs/task-two")):
        reply = web(*call, json={"task": "task"}) if call[1] == "/api/jobs" else web(*call)
        assert reply.status_code == 503
        assert "no right" in reply.json()["error"]["message"] or "NOPERM" in reply.json()["error"]["message"]


def test_a_workers_rights_are_enough_for_all(serve):
    web = serve("worker")
    headers = {"Idempotency-Key": "order 7"}
    assert web("POST", "/api/jobs", json={"task": "task"}, headers=headers).status_code == 201
    assert web("POST", "/api/jobs", json={"task": "task"}, headers=headers).status_code == 200
    for call in (
        ("GET", "/api/recurring"),
        ("POST", "/api/types/pdf/pause"),
        ("POST", "/api/types/pdf/resume"),
        ("DELETE", "/api/jobs/task-two"),
    ):
        assert web(*call).status_code in (200, 202), web(*call).text
