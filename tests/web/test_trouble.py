"""The broker, a result backend, users' code or a client is slow or down."""

import asyncio
import threading
import time

import pytest
import redis
from celery.signals import before_task_publish

from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.web import asgi, broker, site
from celery_affinity.web.broker import BusyError, RequestThreads

from ..support.apps import APP, app_for
from ..support.processes import wait_until
from .conftest import Client

SECRET = "s3cr3t"


@pytest.fixture
def down(monkeypatch):
    """A client of an app whose broker is down. A test may set another URL in `down.app`."""
    app = app_for(f"redis://user:{SECRET}@127.0.0.1:1/0")

    @app.task(name="task")
    def task():
        pass

    client = Client(asgi(app))
    client.app = app
    yield client
    client.close()


CALLS = [
    ("GET", "/api/status"),
    ("GET", "/api/jobs"),
    ("GET", "/api/jobs/x"),
    ("GET", "/readyz"),
    ("DELETE", "/api/jobs/x"),
    ("POST", "/api/types/pdf/pause"),
]


def test_broker_outage_is_reported_without_the_password(down):
    since_s = time.monotonic()
    replies = [down(*call) for call in CALLS]
    replies.append(down("POST", "/api/jobs", json={"task": "task"}))
    replies += down.together(*CALLS * 5)
    assert time.monotonic() - since_s < 20
    for reply in replies:
        assert reply.status_code == 503
        assert reply.headers["Retry-After"] == "1"
        assert "does not answer" in reply.json()["error"]["message"]
        assert SECRET not in reply.text
    assert down.get("/healthz").status_code == 200
    assert "celery_affinity_up 0" in down.get("/metrics").text


def test_returned_broker_is_used_again(fleet, web, monkeypatch):
    assert web.get("/api/status").status_code == 200
    reach = broker.Broker.reach

    def no_answer(self):
        raise ConnectionError

    monkeypatch.setattr(broker.Broker, "reach", no_answer)
    assert web.get("/api/status").status_code == 503
    monkeypatch.setattr(broker.Broker, "reach", reach)
    wait_until(lambda: web.get("/api/status").status_code == 200, 5, "it is back")


def test_connections_closed_by_the_server_are_reopened(fleet, web, redis_client):
    fleet.publish("job", "pdf")
    body = {"task": f"{APP}.pdf", "args": [1]}
    for _ in range(3):
        assert web.get("/api/jobs/task-job").status_code == 200
        assert web("POST", "/api/jobs", json=body).status_code == 201
        redis_client.client_kill_filter(_type="normal", skipme=True)
    assert len(web.get("/api/jobs").json()["jobs"]) == 4


def test_connection_lost_in_a_request_causes_no_error(fleet, web, monkeypatch):
    fleet.publish("job", "pdf")
    ask, lost = Reader.ask, []

    def breaks_once(reader, commands):
        if not lost:
            lost.append(commands)
            raise redis.ConnectionError("gone")
        return ask(reader, commands)

    monkeypatch.setattr(Reader, "ask", breaks_once)
    assert web.get("/api/jobs/task-job").status_code == 200
    assert lost


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(site, "_FOREIGN_S", 0.3)


@pytest.fixture
def never():
    """An event that is set at the end of the test; a wait for it simulates a hanging call."""
    event = threading.Event()
    yield event
    event.set()


def test_hanging_result_backend_blocks_no_other_request(fleet, app, serve, impatient, never, monkeypatch):
    web = serve()
    fleet.publish("job", "pdf")
    monkeypatch.setattr(app.backend.__class__, "get_task_meta", lambda *_: never.wait())
    since_s = time.monotonic()
    replies = web.together(*[("GET", f"/api/jobs/nobody{number}") for number in range(20)])
    assert {reply.status_code for reply in replies} == {503}
    assert time.monotonic() - since_s < 10
    assert web.get("/api/jobs/task-job").status_code == 200


def test_failing_or_hanging_signal_handler_sends_no_traceback(fleet, serve, impatient, never):
    web = serve()
    call = ("POST", "/api/jobs")
    body = {"task": f"{APP}.pdf", "args": [1]}

    def hangs(**_):
        never.wait()

    before_task_publish.connect(hangs)
    try:
        assert web(*call, json=body).status_code == 503
        assert web.get("/api/status").status_code == 200
    finally:
        before_task_publish.disconnect(hangs)
    assert web(*call, json=body).status_code == 201


def test_task_that_fails_eagerly_reveals_only_its_error_type(fleet, serve, app, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError(SECRET)

    monkeypatch.setattr(app.tasks[f"{APP}.pdf"].__class__, "apply_async", fails)
    reply = serve()("POST", "/api/jobs", json={"task": f"{APP}.pdf", "args": [1]})
    assert reply.status_code == 500
    assert SECRET not in reply.text
    assert "RuntimeError" in reply.json()["error"]["message"]


def test_waiting_request_is_answered_at_the_jobs_end(fleet, web):
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    (claim,) = fleet.inbox("worker")

    async def waits():
        paths = [f"/api/jobs/{each}?wait=30" for each in ("task-job", "job") * 20]
        waiting = [asyncio.create_task(web.http.request("GET", path)) for path in paths]
        await asyncio.sleep(0.3)
        assert not any(each.done() for each in waiting)
        await asyncio.to_thread(fleet.end, "worker", claim)
        return await asyncio.wait_for(asyncio.gather(*waiting), 10)

    assert {reply.json()["state"] for reply in web.run(waits())} == {"done"}


def test_waiting_request_is_answered_after_its_timeout(fleet, web):
    fleet.publish("job", "pdf")
    assert web.get("/api/jobs/task-job?wait=0.3").json()["state"] == "pending"
    assert web.get("/api/jobs/nobody?wait=30").status_code == 404


def test_hanging_work_is_given_up_and_frees_its_thread(never):
    async def main():
        threads = RequestThreads("test", 2, 0.2)
        with pytest.raises(BusyError):
            await threads.run(never.wait)
        assert await threads.run(lambda: 7) == 7
        with pytest.raises(BusyError):
            await threads.run(never.wait)
        with pytest.raises(BusyError):
            await threads.run(lambda: 7)

    asyncio.run(main())
    never.set()


def test_threads_raise_their_works_errors():
    def leaves():
        raise SystemExit(3)

    def fails():
        raise ValueError("no")

    def is_late():
        raise TimeoutError("of its own")

    async def main():
        threads = RequestThreads("test", 2, 5)
        with pytest.raises(RuntimeError, match="SystemExit"):
            await threads.run(leaves)
        with pytest.raises(ValueError, match="no"):
            await threads.run(fails)
        with pytest.raises(TimeoutError, match="of its own"):
            await threads.run(is_late)

    asyncio.run(main())


@pytest.mark.parametrize(("method", "path", "arrow"), [
    ("POST", "/api/dead/task-job/replay", "replay"),
    ("POST", "/api/jobs/task-job/retry", "replay"),
    ("DELETE", "/api/dead/task-job", "drop"),
])  # fmt: skip
def test_change_with_a_lost_reply_is_reported_as_uncertain(fleet, web, monkeypatch, method, path, arrow):
    fleet.bury("job")
    change, calls = getattr(Scheduler, arrow), []

    def loses_the_reply(scheduler, job_ids):
        calls.append(change(scheduler, job_ids))
        raise redis.ConnectionError("reset by peer")

    monkeypatch.setattr(Scheduler, arrow, loses_the_reply)
    reply = web(method, path)
    assert (reply.status_code, len(calls)) == (503, 1)
    assert "was lost; whether it made the change is unknown: reset by peer" in reply.text
