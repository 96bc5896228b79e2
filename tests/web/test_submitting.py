"""Jobs submitted over HTTP."""

import asyncio
import json
import re

import pytest
import redis

from celery_affinity.admin.submit import ACCEPTED, Submission
from celery_affinity.publishing import app_config
from celery_affinity.scheduler.idempotency import idempotency_key
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.settings.table import Settings

from ..support.apps import APP, app_for
from .conftest import error_of

PDF = f"{APP}.pdf"


def post(web, *args, key=None, task=PDF, **body):
    headers = {} if key is None else {"Idempotency-Key": key}
    return web("POST", "/api/jobs", json={"task": task, "args": list(args), **body}, headers=headers)


def all_jobs(web):
    return web.get("/api/jobs").json()["jobs"]


def test_submitted_job_is_found_at_its_location(fleet, web):
    reply = post(web, 7, options={"priority": 3, "on_demand": True})
    assert reply.status_code == 201
    found = web.get(reply.headers["Location"]).json()
    assert reply.json() == found
    assert (found["state"], found["type"], found["priority"], found["mode"]) == ("pending", "pdf", 3, "on_demand")
    assert found["task"] == PDF


def test_message_has_celerys_format_in_json(fleet, web, app, monkeypatch):
    monkeypatch.setattr(app.tasks[PDF].__class__, "serializer", "pickle")
    assert post(web, 7, kwargs={"seconds": 0.5}, options={"time_limit": 9, "shadow": "seven"}).status_code == 201
    claim = fleet.join_and_claim("worker", "pdf")
    message = json.loads(claim.message)
    assert message["content-type"] == "application/json"
    assert json.loads(message["body"])[:2] == [[7], {"seconds": 0.5}]
    assert (message["headers"]["timelimit"], message["headers"]["shadow"]) == ([9, None], "seven")


def test_publish_repeated_after_a_lost_reply_is_one_job(fleet, web, monkeypatch):
    publish, lost = Scheduler.publish, []

    def reply_is_lost(scheduler, *jobs):
        found = publish(scheduler, *jobs)
        if not lost:
            lost.append(jobs)
            raise redis.ConnectionError("gone")
        return found

    monkeypatch.setattr(Scheduler, "publish", reply_is_lost)
    assert post(web, 7).status_code == 201
    assert lost
    assert len(all_jobs(web)) == 1


def test_job_with_a_countdown_is_scheduled(fleet, web):
    found = post(web, 7, options={"countdown": 60}).json()
    assert found["state"] == "scheduled"
    assert found["due_s"] - found["enqueued_s"] == pytest.approx(60, abs=2)


def test_submitted_job_has_its_due_times(fleet, web, monkeypatch):
    publish, words = Scheduler.publish, []

    def record(scheduler, *jobs):
        words.extend(job.due for job in jobs)
        return publish(scheduler, *jobs)

    monkeypatch.setattr(Scheduler, "publish", record)
    for deadline in (3600, "2030-01-01T12:00:00+01:00"):
        assert post(web, 7, options={"start_within": 2.5, "deadline": deadline}).status_code == 201
    assert re.fullmatch("w2500000 d3[56][0-9]{8}", words[0])
    assert words[1].startswith("w2500000 d")
    refused = {
        "start_within": [0, -1, "5", True, 1e12],
        "deadline": ["2030-01-01T12:00:00", "soon", True, [], {"__type__": "datetime"}],
    }
    for option, values in refused.items():
        for value in values:
            reply = post(web, 7, options={option: value})
            assert (reply.status_code, error_of(reply).partition(" must be ")[0]) == (422, option)


def test_job_shows_its_due_times(fleet, web, redis_client):
    job_id = post(web, 7).json()["job_id"]
    names = ("start_by_s", "start_within_s", "deadline_s", "size")
    key = fleet.scheduler.keys.key("job", job_id)
    shown = {"1000000000 w30000000 d1060000000 s12500000": (1000, 30, 1060, 12.5), "- s5000000": (None, None, None, 5)}
    for field, expected in {**shown, "damaged": (None,) * 4}.items():
        redis_client.hset(key, "due", field)
        found = web.get(f"/api/jobs/{job_id}").json()
        assert tuple(found[name] for name in names) == expected


def test_repeated_request_is_the_same_job(fleet, web):
    first = post(web, 7, key="order 7")
    again = post(web, 7, key="order 7")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert first.headers["Location"] == again.headers["Location"]
    assert len(all_jobs(web)) == 1
    assert post(web, 7, key="order 8").json()["id"] != first.json()["id"]


def test_repeated_request_is_the_same_job_after_data_loss(fleet, web, redis_client):
    first = post(web, 7, key="order 7").json()["id"]
    for key in redis_client.scan_iter("*"):
        if b"idempotency" not in key:
            redis_client.delete(key)
    again = post(web, 7, key="order 7")
    assert (again.status_code, again.json()["id"], again.json()["state"]) == (200, first, "unknown")
    assert all_jobs(web) == []


def test_another_body_with_the_same_key_is_refused(fleet, web):
    first = post(web, 7, key="order 7").json()
    for other in (post(web, 8, key="order 7"), post(web, 7, key="order 7", options={"priority": 1})):
        assert other.status_code == 409
        assert first["id"] in error_of(other)
    assert len(all_jobs(web)) == 1


def test_one_of_many_concurrent_requests_creates_the_job(fleet, web, serve):
    def call(number):
        body = {"task": PDF, "args": [number]}
        return web.http.request("POST", "/api/jobs", json=body, headers={"Idempotency-Key": "order"})

    async def all_of_them():
        return await asyncio.gather(*(call(number % 2) for number in range(12)))

    codes = sorted(reply.status_code for reply in web.run(all_of_them()))
    assert codes == [200] * 5 + [201] + [409] * 6
    assert len(all_jobs(web)) == 1


def test_two_servers_create_one_job_for_a_key(fleet, serve):
    one, other = serve(), serve()
    assert post(one, 7, key="order").status_code == 201
    assert post(other, 7, key="order").status_code == 200
    assert post(other, 8, key="order").status_code == 409
    assert all_jobs(one) == all_jobs(other)


def test_request_is_remembered_for_the_configured_time(fleet, web, redis_client):
    post(web, 7, key="order")
    assert 86_000 < redis_client.ttl(idempotency_key(fleet.scheduler, "order")) <= 86_400


def test_job_and_idempotency_key_are_written_together(fleet, web, redis_client, monkeypatch):
    execute = redis.client.Pipeline.execute

    def breaks(pipe, *args, **options):
        if any(command[0][0] == "FCALL" for command in pipe.command_stack):
            raise redis.ConnectionError("gone")
        return execute(pipe, *args, **options)

    monkeypatch.setattr(redis.client.Pipeline, "execute", breaks)
    assert post(web, 7, key="order").status_code == 503
    monkeypatch.undo()
    assert not redis_client.exists(idempotency_key(fleet.scheduler, "order"))
    web.run(asyncio.sleep(0.6))  # until then the broker is not called again
    assert post(web, 7, key="order").status_code == 201


def test_scripts_are_loaded_again_after_a_script_flush(fleet, web, redis_client):
    post(web, 7, key="one")
    redis_client.script_flush()
    assert post(web, 7, key="two").status_code == 201
    redis_client.script_flush()
    assert post(web, 7).status_code == 201
    assert len(all_jobs(web)) == 3


@pytest.mark.parametrize("key", ["", "x" * 256, "\x7f"])
def test_invalid_idempotency_key_is_refused(fleet, web, key):
    assert post(web, 7, key=key).status_code == 422


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        7,
        {"task": 7},
        {"task": PDF, "args": {}},
        {"task": PDF, "kwargs": []},
        {"task": PDF, "more": 1},
        {"task": PDF, "options": None},
    ],
)
def test_body_without_a_valid_call_is_a_bad_request(web, body):
    reply = web("POST", "/api/jobs", json=body)
    assert reply.status_code == 400
    assert "got: " in error_of(reply)


def test_only_registered_and_allowed_tasks_are_called(serve):
    assert post(serve(allow=["*.[p]df"]), 7).status_code == 404, "the asterisk is the only wildcard"
    web = serve(allow=["*.pdf", "*.excel"])
    assert post(web, 7).status_code == 201
    for task in (f"{APP}.mail", "os.system", "celery.backend_cleanup", ""):
        reply = post(web, 7, task=task)
        assert reply.status_code == 404
        assert "no task that can be submitted" in error_of(reply)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"priority": 11}, "priority must be a whole number from 0 to 10, got: 11"),
        ({"priority": -1}, "priority must be a whole number from 0 to 10, got: -1"),
        ({"affinity": {"type": "pdf", "priority": 11}}, "affinity must be"),
        ({"priority": "high"}, "priority must be a whole number from 0 to 10, got: 'high'"),
        ({"on_demand": "yes"}, "on_demand must be true or false, got: 'yes'"),
        ({"countdown": -1}, "countdown must be a number of seconds"),
        ({"countdown": 1e300}, "countdown must be a number of seconds"),
        ({"eta": "soon"}, "eta must be a time as ISO 8601 has it, got: 'soon'"),
        ({"queue": "a,b"}, "got: 'a,b'"),
        ({"link": "os.system"}, "options must be of queue, affinity"),
        ({"serializer": "pickle"}, "got: 'serializer'"),
        ({"task_id": "mine"}, "got: 'task_id'"),
    ],
)
def test_refused_option_is_named(fleet, web, options, words):
    reply = post(web, 7, options=options)
    assert reply.status_code == 422
    assert words in error_of(reply)
    assert all_jobs(web) == []


def test_unexpected_task_arguments_are_refused(fleet, web):
    reply = post(web, task=PDF)
    assert reply.status_code == 422
    assert "cannot be called with these arguments" in error_of(reply)


def test_eager_app_runs_no_task_here(fleet, web, app):
    app.conf.task_always_eager = True
    try:
        reply = post(web, 7)
    finally:
        app.conf.task_always_eager = False
    assert reply.status_code == 422
    assert "task_always_eager" in error_of(reply)


def test_idempotency_key_requires_a_scheduled_queue(valkey, redis_client, serve):
    app = app_for(valkey.url, affinity_queues=["pdf"], task_routes={"mail": {"queue": "mail"}})

    @app.task(name="mail", shared=False)
    def mail():
        pass

    web = serve(of=app)
    refused = post(web, task="mail", key="order")
    assert (refused.status_code, "queue 'mail' is kombu's own" in error_of(refused)) == (422, True)
    assert post(web, task="mail").status_code == 201
    assert redis_client.llen("mail") == 1


def test_each_option_can_be_null(fleet, web):
    assert post(web, 7, options=dict.fromkeys(ACCEPTED)).status_code == 201


def test_digest_depends_on_the_call_not_its_notation():
    one = Submission("t", [1], {"a": 1, "b": 2}, {"priority": 1})
    assert one.digest == Submission("t", [1], {"b": 2, "a": 1}, {"priority": 1}, "key").digest
    others = [Submission("t", [2], {"a": 1, "b": 2}, {"priority": 1}), Submission("u", [1], {"a": 1, "b": 2})]
    assert len({one.digest, *(each.digest for each in others)}) == 3


def test_full_queue_is_a_conflict_and_frees_the_key(fleet, serve, app, monkeypatch):
    monkeypatch.setitem(app_config._SETTINGS, app, Settings(max_pending={"pdf": 1}))
    web = serve()
    assert post(web, 1).status_code == 201
    for key in (None, "mine"):
        reply = post(web, 2, key=key)
        assert (reply.status_code, error_of(reply)) == (
            409,
            "type 'pdf' is full: 1 of its jobs wait, and affinity_max_pending allows 1",
        )
    (of_type,) = web.get("/api/types").json()
    assert (of_type["pending"], of_type["bound"]["most"]) == (1, 1)
    fleet.join("worker", "pdf")
    assert post(web, 2, key="mine").status_code == 201
