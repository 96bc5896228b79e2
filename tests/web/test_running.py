"""HTTP workers: the effect of each request, on a real server, with jobs published by Celery."""

import asyncio
import threading
import time

import celery
import pytest
from celery import chain, chord, states
from kombu.exceptions import OperationalError

from celery_affinity import Affinity, Merge
from celery_affinity.check import check
from celery_affinity.check.gather import gather_facts
from celery_affinity.http_workers import job_end
from celery_affinity.http_workers.job_end import Outcome
from celery_affinity.publishing import option_resolution
from celery_affinity.reports import dead_letters
from celery_affinity.reports.run_times import run_time_rows
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys
from celery_affinity.web import asgi

from ..support.apps import APP, app_for
from ..support.processes import wait_until
from ..support.remote_workers import RemoteWorker
from ..support.scripted_fleet import ScriptedFleet
from .conftest import Client, error_of

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery calls it


@pytest.fixture(scope="module")
def made():
    """The HTTP interface of all tests here, made by the first of them, because building it takes longer than a test."""
    found = []
    yield found
    for each in found:
        each.close()


@pytest.fixture
def web(app, redis_client, made):
    if not made:
        made.append(Client(asgi(app)))
    return made[0]


@pytest.fixture
def send(app, redis_client):
    def send(task="late", *args, **options):
        return app.tasks[f"{APP}.{task}"].apply_async(args or ("one",), **options)

    return send


@pytest.fixture
def node(web):
    return RemoteWorker(web, "pdf")


def row_of(redis_client, job):
    return {name.decode(): value for name, value in redis_client.hgetall(Keys().key("job", job["id"])).items()}


# -- the life of a job


def test_job_is_claimed_started_and_ended_with_a_result(node, send, web, redis_client):
    result = send("late", "a", 0.5)
    job = node.job()
    assert (job["task"], job["task_id"], job["args"], job["kwargs"]) == (f"{APP}.late", result.id, ["a", 0.5], {})
    assert (job["type"], job["deliveries"], job["retries"], job["acks_late"]) == ("pdf", 0, 0, True)
    assert node.start(job).json() == {"id": job["id"], "fence": job["fence"]}
    found = web.get(f"/api/jobs/{result.id}").json()
    assert (found["state"], found["worker"]) == ("running", "node")
    assert node.end(job, result={"pages": [1, 2]}).json()["state"] == "done"
    assert result.get(timeout=10) == {"pages": [1, 2]}
    assert web.get(f"/api/jobs/{result.id}").json()["state"] == "done"
    (worker,) = Report(Reader(redis_client, Keys())).status().workers
    assert (worker.name, worker.free) == ("node", 1)


def test_poll_waits_for_a_later_job(node, send):
    timer = threading.Timer(0.3, send, ["late", "later"])
    timer.start()
    since_s = time.monotonic()
    assert node.job(wait=20)["args"] == ["later"]
    assert 0.3 <= time.monotonic() - since_s < 5
    timer.join()


def test_poll_without_a_job_is_204(node):
    assert node.poll(wait=0.2) is None


def test_failed_job_is_reported_and_its_errback_published(node, send, app, redis_client):
    result = send("late", "bad", link_error=app.tasks[f"{APP}.fail"].si("errback"))
    job = node.job()
    error = {"type": "RenderError", "message": "no such page", "traceback": "at render.js:7"}
    assert node.end(job, "failed", error=error).json()["state"] == "failed"
    with pytest.raises(Exception, match="no such page") as raised:
        result.get(timeout=10)
    assert type(raised.value).__name__ == "RenderError"
    assert (result.state, result.traceback) == (states.FAILURE, "at render.js:7")
    assert node.job()["args"] == ["errback"]


def test_links_and_next_chain_steps_get_the_result(node, app, redis_client):
    pdf = app.tasks[f"{APP}.late"]
    chain(pdf.si("first"), pdf.s(0)).apply_async(link=pdf.s(7))
    assert node.run(result="page").status_code == 200
    second = node.job()
    assert second["args"] == ["page", 0]
    node.end(second, result="end")
    assert node.job()["args"] == ["end", 7]


def test_chord_body_is_published_once_after_its_last_part(node, app, redis_client):
    pdf = app.tasks[f"{APP}.late"]
    chord([pdf.si("a"), pdf.si("b")])(pdf.s())
    first = node.job()
    assert node.end(first, result=1).status_code == node.end(first, result=1).status_code == 200
    second = node.job()
    assert node.jobs() == []
    node.end(second, result=2)
    assert node.job()["args"] == [[1, 2]]


@pytest.mark.skipif(celery.VERSION[:2] < (5, 7), reason="Celery claims no chord before 5.7")
def test_repeated_chord_part_is_counted_without_another_claim(node, app, redis_client):
    """Such a claim remains after the death of a worker, and of the web process that reported the end."""
    pdf = app.tasks[f"{APP}.late"]
    result = chord([pdf.si("a"), pdf.si("b")])(pdf.s())
    assert node.end(node.job(), result=2).status_code == 200
    job = node.job()
    redis_client.hset(Keys().key("job", job["id"]), "deliveries", 1)
    assert node.start(job).status_code == 200
    claim = app.backend.get_key_for_group(result.parent.id, ".c")
    redis_client.set(claim, "of a process that died")
    assert node.end(job, result=1).status_code == 503
    redis_client.delete(claim)
    assert node.end(job, result=1).status_code == 200
    assert sorted(node.job()["args"][0]) == [1, 2]


def test_requeue_is_counted_but_a_return_is_not(node, send):
    send()
    error = {"type": "Busy", "message": ""}
    assert node.end(node.job(), "failed", error=error, requeue=True).json()["state"] == "pending"
    again = node.job()
    assert (again["deliveries"], again["requeues"]) == (0, 1)
    assert node.end(again, "returned").json()["state"] == "pending"
    again = node.job()
    assert (again["deliveries"], again["requeues"]) == (0, 1)


def test_early_acked_task_runs_once_after_its_start(node, send, web):
    result = send("early")
    job = node.job()
    assert job["acks_late"] is False
    node.start(job)
    refused = node.end(job, "returned")
    assert (refused.status_code, "acks_late is off" in error_of(refused)) == (409, True)
    assert node.leave().json() == {"id": node.id, "returned": 0}
    assert web.get(f"/api/jobs/{result.id}").json()["state"] == "dead"


def test_waits_and_slot_times_are_counted(node, send, redis_client):
    send()
    node.run()
    row = redis_client.hgetall(Keys().key("metrics", "pdf"))
    kinds = {name.decode().rpartition(" ")[0] for name in row}
    assert {"queued", "done"} <= kinds


# -- repeated requests


def test_run_time_is_learned_with_the_size_of_the_call(node, send, app, redis_client, monkeypatch):
    monkeypatch.setattr(option_resolution, "_SIZES", {})  # other tests have used the task without a size
    monkeypatch.setattr(app.tasks[f"{APP}.late"], "affinity", Affinity("pdf", size="{seconds}"))
    send("late", "a", 40)
    assert node.run(result=1).json()["state"] == "done"
    send("late", "a", 99)
    assert node.run(state="failed", error={"type": "ValueError", "message": "no"}).json()["state"] == "failed"
    (row,) = run_time_rows(Reader(redis_client, Keys()))
    assert (row.task, row.runs, row.mean_size) == (f"{APP}.late", 1, 40), "the failed run does not count"


def test_repeated_end_has_the_same_reply_and_one_link(node, send, app, web, redis_client):
    send("late", "one", link=app.tasks[f"{APP}.late"].s(3))
    job = node.job()
    first = node.end(job, result="x")
    second = node.end(job, result="x")
    assert (first.status_code, first.json()) == (second.status_code, second.json())
    other = node.end(job, result="y")
    assert (other.status_code, "another end" in error_of(other)) == (409, True)
    node.end(node.job(), result=0)
    assert node.jobs() == []


def test_repeated_end_resumes_after_a_process_death(node, send, app, monkeypatch, redis_client):
    """The process dies after it reported to the callers, or after it recorded that. The repeated request frees the
    slot.
    """
    told, tell = [], job_end.report_to_caller
    monkeypatch.setattr(job_end, "report_to_caller", lambda *_, **how: (told.append(how["is_stored"]), tell(*_, **how)))
    for place in (
        "celery_affinity.http_workers.job_end.OutcomeNote.write",
        "celery_affinity.http_workers.job_end._release",
    ):
        result = send("late", "one", link=app.tasks[f"{APP}.late"].si("link"))
        job = node.job()
        with monkeypatch.context() as patched:
            patched.setattr(place, lambda *_: 1 / 0)
            assert node.end(job, result=5).status_code == 500
        assert result.get(timeout=10) == 5
        assert node.jobs() == [], "the slot is not free"
        assert node.end(job, result=5).json()["state"] == "done"
        link = node.job()
        assert link["args"] == ["link"]
        node.end(link)
        assert node.jobs() == [], "the link was published once"
    assert told == [False, True, False, False, False], "whether the end was known: both jobs, and their links"


def test_stale_fencing_token_is_409_and_changes_nothing(node, send, web):
    result = send()
    job = node.job()
    node.end(job, "returned")
    again = node.job()
    for reply in (node.start(job), node.end(job, result=1)):
        assert reply.status_code == 409
    assert web.get(f"/api/jobs/{result.id}").json()["state"] == "running"
    assert node.end(again, result=2).status_code == 200
    assert result.get(timeout=10) == 2


def test_job_in_a_lost_reply_is_polled_again(node, send):
    send()
    lost = node.job()
    assert node.jobs() == []
    assert node.jobs(held=f"{lost['fence']}") == []
    (again,) = node.jobs(held="")
    assert {**again, "waited_s": 0} == {**lost, "waited_s": 0}


def test_job_in_a_lost_reply_is_returned_by_heartbeats(node, send, redis_client):
    send()
    lost = node.job()
    assert node.beat().status_code == 200
    assert node.jobs() == [], "a young claim may be on its way"
    redis_client.hset(Keys().key("job", lost["id"]), "claimed", 1)
    assert node.beat().json() == {"stop": [], "gone": []}
    again = node.job()
    assert (again["id"], again["deliveries"]) == (lost["id"], 0)
    assert node.beat(lost).json()["gone"] == [{"id": lost["id"], "fence": lost["fence"]}]


def test_heartbeat_sent_before_a_job_does_not_return_it(node, send, redis_client):
    send()
    job = node.job()
    row = Keys().key("job", job["id"])
    redis_client.hincrby(row, "claimed", -50_000_000)
    node.beat()
    assert row_of(redis_client, job)["state"] == b"claimed", "the reply with the job may have been late"
    assert node.start(job).status_code == 200
    redis_client.hset(row, "claimed", 1)
    node.beat()
    assert row_of(redis_client, job)["state"] == b"claimed"
    redis_client.hset(row, "started", 1)
    node.beat()
    assert node.job()["fence"] > job["fence"], "its worker has forgotten it"


# -- stops


def test_revoked_job_is_stopped_and_its_end_reported(node, send, web):
    result = send()
    job = node.job()
    node.start(job)
    assert node.beat(job).json() == {"stop": [], "gone": []}
    assert web("DELETE", f"/api/jobs/{result.id}?terminate=1").status_code == 202
    assert node.beat(job).json()["stop"] == [
        {"id": job["id"], "fence": job["fence"], "reason": "revoked", "grace_s": None}
    ]
    assert node.end(job, "revoked").json()["state"] == "revoked"
    assert web.get(f"/api/jobs/{result.id}").json()["state"] == "revoked"
    assert result.state == states.REVOKED


def test_revoked_or_expired_job_does_not_start(node, send, web, redis_client):
    revoked, expired = send(), send("late", "two", expires=600)
    node_of_two = RemoteWorker(web, "pdf", name="other")
    jobs = {each["task_id"]: each for each in (node.job(), node_of_two.job())}
    assert 500 < jobs[expired.id]["expires_in_s"] <= 600
    revoked.revoke()
    redis_client.hset(Keys().key("job", jobs[expired.id]["id"]), "expires", 1)
    holders = {each.joined["id"]: each for each in (node, node_of_two)}
    for result, how in ((revoked, "revoked"), (expired, "expired")):
        job = jobs[result.id]
        holder = holders[row_of(redis_client, job)["worker"].decode()]
        refused = holder.start(job)
        assert (refused.status_code, f"is {how}" in error_of(refused)) == (409, True)
        assert web.get(f"/api/jobs/{result.id}").json()["state"] == how
        assert result.state == states.REVOKED


def test_control_messages_are_obeyed_or_ignored(node, send, redis_client):
    inbox = Keys().key("inbox", node.id)
    send()
    job = node.job()
    for sign in (f"preempt {job['id']} {job['fence']} 1500", "preempt x y z", "what is this", "tick"):
        redis_client.lpush(inbox, f"\n{sign}")
    stop = {"id": job["id"], "fence": job["fence"], "reason": "preempted", "grace_s": 1.5}
    assert node.beat(job).json() == {"stop": [stop], "gone": []}
    redis_client.lpush(inbox, f"\npreempt {job['id']} {job['fence']} 1500")
    assert node.poll() == {"jobs": [], "stop": [stop]}
    assert redis_client.llen(inbox) == 0


def test_job_is_preempted_only_on_a_worker_that_stops(web, app, redis_client):
    task = app.tasks[f"{APP}.late"]
    scheduler = Scheduler(redis_client, Keys())
    scheduler.configure(
        {"tenants": "beta=max:none,min:1", "preemption_delay_us": "0", "preemption_grace_us": "9000000"}
    )
    deaf, heeding = RemoteWorker(web, "pdf", name="deaf"), RemoteWorker(web, "pdf", name="heeds", stops=True)
    for _ in range(2):
        task.apply_async(("batch",), affinity=Affinity(tenant="acme", preemptible=True))
    jobs = {each: each.job() for each in (deaf, heeding)}
    for each, job in jobs.items():
        assert each.start(job).status_code == 200
    wanted = task.apply_async(("customer",), tenant="beta")
    scheduler.tick()
    job = jobs[heeding]
    assert deaf.beat(jobs[deaf]).json() == {"stop": [], "gone": []}
    stop = {"id": job["id"], "fence": job["fence"], "reason": "preempted", "grace_s": 9.0}
    assert heeding.beat(job).json() == {"stop": [stop], "gone": []}
    for _ in range(2):
        assert heeding.end(job, "preempted").json()["state"] == "pending"
    assert heeding.run(result="looked").status_code == 200
    assert wanted.get(timeout=10) == "looked"
    again = heeding.job()
    assert (again["id"], again["deliveries"], row_of(redis_client, again)["preemptions"]) == (job["id"], 0, b"1")
    assert heeding.end(again, "preempted").json()["state"] == "pending"
    assert heeding.job()["requeues"] == 1, "nobody had asked"


def test_worker_sets_its_priority(web, redis_client):
    worker = RemoteWorker(web, "pdf", priority=3)
    assert redis_client.hget(Keys().key("worker", worker.id), "priority") == b"3"


# -- workers


def test_leaving_worker_returns_its_jobs_and_is_forgotten(node, send, web):
    send()
    job = node.job()
    assert node.leave().json() == {"id": node.id, "returned": 1}
    for reply in (node.leave(), node.beat(job), node.request("GET", f"/api/workers/{node.id}/jobs")):
        assert (reply.status_code, "join again" in error_of(reply)) == (404, True)
    assert node.end(job).status_code == 409
    assert RemoteWorker(web, "pdf").job()["id"] == job["id"]


def test_job_of_a_dead_worker_runs_elsewhere(node, send, web, redis_client):
    send()
    job = node.job()
    node.start(job)
    Scheduler(redis_client, Keys()).recover(node.id)
    again = RemoteWorker(web, "pdf", name="other").job()
    assert (again["id"], again["deliveries"]) == (job["id"], 1)
    assert node.end(job).status_code == 409
    assert node.beat(job).status_code == 404


def test_secret_is_valid_for_one_worker(node, send, web):
    send()
    job = node.job()
    other = RemoteWorker(web, "mail", name="other")
    other.id = node.id
    calls = [other.beat(job), other.leave(), other.start(job), other.end(job)]
    calls.append(other.request("GET", f"/api/workers/{node.id}/jobs"))
    assert {each.status_code for each in calls} == {403}
    assert node.end(job).status_code == 200
    assert other.end(job).status_code == 403
    without = web.get(f"/api/workers/{node.id}/jobs")
    assert (without.status_code, "worker-secret" in error_of(without)) == (400, True)


def test_later_of_two_polls_gets_the_job(node, web, send):
    path = f"/api/workers/{node.id}/jobs?wait=40"

    async def both():
        polls = {asyncio.create_task(web.http.get(path, headers=node.headers)) for _ in range(2)}
        ended, waiting = await asyncio.wait(polls, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(send)
        return [each.result().status_code for each in ended], [(await each).status_code for each in waiting]

    assert web.run(both()) == ([204], [200])


def test_poll_is_503_while_the_broker_is_down(serve, redis_client, monkeypatch):
    node = RemoteWorker(serve(), "pdf")

    def opened(_):
        raise OperationalError("no route")

    monkeypatch.setattr("celery_affinity.web.broker.Broker.opened", opened)
    refused = node.request("GET", f"/api/workers/{node.id}/jobs", params={"wait": 5})
    assert (refused.status_code, "does not answer" in error_of(refused)) == (503, True)


def test_http_worker_takes_no_remote_control(node, web):
    refused = web("POST", "/api/workers/node/drain")
    assert (refused.status_code, "works over HTTP" in error_of(refused)) == (409, True)


# -- tokens and invalid input


def test_worker_token_only_runs_jobs(serve, redis_client):
    tokens = {role * 4: role for role in ("read", "submit", "admin")} | {"worker" * 4: "worker"}
    clients = {role: serve(tokens=tokens, token=role * 4) for role in tokens.values()}
    joining = {"name": "node", "types": ["pdf"], "slots": 1}
    statuses = {role: client("POST", "/api/workers", json=joining).status_code for role, client in clients.items()}
    assert statuses == {"read": 403, "submit": 403, "admin": 201, "worker": 201}
    node = RemoteWorker(clients["worker"], "pdf")
    assert node.jobs() == []
    assert node.beat().status_code == 200
    for method, path in (("GET", "/api/jobs"), ("GET", "/api/status"), ("POST", "/api/jobs"), ("DELETE", "/api/jobs")):
        assert clients["worker"](method, path, json=None).status_code == 403
    assert node.leave().status_code == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"types": ["pdf"]}, "name: "),
        ({"name": "", "types": ["pdf"]}, "name must be a text of 1 to 255 printable characters"),
        ({"name": "n\n", "types": ["pdf"]}, "name must be"),
        ({"name": "n", "types": []}, "types must be a list of 1 to 100 types, got: 0"),
        ({"name": "n", "types": ["a"] * 101}, "types must be a list of 1 to 100 types, got: 101"),
        ({"name": "n", "types": ["a,b"]}, "types must be each the name of a queue"),
        ({"name": "n", "types": "pdf"}, "types: "),
        ({"name": "n", "types": ["pdf"], "slots": 0}, "slots must be a whole number from 1 to 1,000, got: 0"),
        ({"name": "n", "types": ["pdf"], "slots": "2"}, "slots: "),
        ({"name": "n", "types": ["pdf"], "priority": 1001}, "priority must be a whole number from -1000 to 1000"),
        ({"name": "n", "types": ["pdf"], "pool": "x"}, "pool: "),
    ],
)
def test_invalid_join_is_refused_with_a_reason(web, redis_client, body, words):
    refused = web("POST", "/api/workers", json=body)
    assert (refused.status_code, words in error_of(refused)) == (400, True), error_of(refused)
    assert not redis_client.exists(Keys().key("heartbeats"))


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"state": "done"}, 400, "fence: "),
        ({"fence": 0, "state": "done"}, 400, "fence: "),
        ({"fence": 10**19, "state": "done"}, 400, "fence: "),
        ({"fence": "1", "state": "done"}, 400, "fence: "),
        ({"fence": 1, "state": "over"}, 400, "state: "),
        ({"fence": 1, "state": "failed"}, 422, "error must be present if and only if state is 'failed'"),
        ({"fence": 1, "state": "done", "error": {"type": "E"}}, 422, "error must be present"),
        ({"fence": 1, "state": "failed", "error": {"type": "a b"}}, 400, "error.type: "),
        ({"fence": 1, "state": "failed", "error": {"type": "E", "message": "x" * 10_001}}, 400, "error.message: "),
        ({"fence": 1, "state": "failed", "error": {"type": "E"}, "result": 1}, 422, "result must be present only"),
        ({"fence": 1, "state": "done", "requeue": True}, 422, "requeue must be true only"),
        ({"fence": 1, "state": "done", "requeue": 1}, 400, "requeue: "),
        ({"fence": 1, "state": "done", "more": 1}, 400, "more: "),
        ({"fence": 1, "state": "done"}, 409, "is not the fence of a claim"),
    ],
)
def test_invalid_end_is_refused_with_a_reason(node, web, body, status, words):
    refused = node.request("POST", "/api/jobs/nobody/end", json=body)
    assert (refused.status_code, words in error_of(refused)) == (status, True), refused.text


@pytest.mark.parametrize("running", [[["id"]], [["id", "1"]], [["", 1]], [["x" * 256, 1]], [["id", 1]] * 1001, 7])
def test_invalid_heartbeat_is_refused(node, running):
    refused = node.request("POST", f"/api/workers/{node.id}/heartbeat", json={"running": running})
    assert (refused.status_code, "running" in error_of(refused)) == (400, True)


def test_invalid_poll_is_refused(node):
    for params, words in (({"held": "1,x"}, "held must be fences"), ({"wait": 61}, "wait: "), ({"hold": "1"}, "held")):
        refused = node.request("GET", f"/api/workers/{node.id}/jobs", params=params)
        assert (refused.status_code, words in error_of(refused)) == (400, True)
    unknown = node.request("GET", "/api/workers/nobody/jobs")
    assert unknown.status_code == 404


# -- jobs for Celery's workers


@pytest.fixture
def celerys(redis_client):
    """A Celery worker of the type, with its only slot taken. The test controls it."""
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("celery", "pdf")
    fleet.publish("long", "pdf")
    (fleet.long,) = fleet.inbox("celery")
    return fleet


def findings(app):
    return [each.what for each in check(gather_facts(app, answers_within_s=0.1)) if each.id == "left-to-celery"]


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ({"serializer": "pickle"}, "application/x-python-serialize"),
        ({"serializer": "yaml"}, "application/x-yaml"),
        ({"compression": "gzip"}, "application/x-gzip"),
    ],
)
def test_non_json_job_stays_pending_for_celery_workers(celerys, node, send, app, web, redis_client, how, kind):
    result = send("late", "a", **how)
    later = send("late", "b")
    assert node.jobs() == node.jobs(wait=0.2) == []
    explained = web.get(f"/api/jobs/{result.id}").json()
    assert (explained["state"], explained["deliveries"]) == ("pending", 0)
    (found,) = findings(app)
    assert explained["job_id"] in found
    assert f"must be JSON (application/json in utf-8, not compressed), got: {kind}" in found.replace(
        "application/json, utf-8, ", ""
    )
    (its,) = [each for each in Report(Reader(redis_client, Keys())).status().workers if each.name == "node"]
    assert its.withdrawn == ["pdf"]
    (claim,) = celerys.end("celery", celerys.long)
    assert claim.job_id == explained["job_id"]
    assert node.job()["task_id"] == later.id, "the worker serves the type again"
    assert findings(app) == []


def test_waiting_worker_continues_after_a_non_json_job(celerys, node, send):
    send(serializer="pickle")
    later = send("late", "b")
    timer = threading.Timer(0.5, celerys.end, ["celery", celerys.long])
    timer.start()
    since_s = time.monotonic()
    assert node.job(wait=30)["task_id"] == later.id
    assert time.monotonic() - since_s < 10
    timer.join()


def test_non_json_job_is_dead_lettered_without_celery_workers(celerys, web, send, redis_client):
    nodes = [RemoteWorker(web, "pdf", "mail", name=name, slots=2, priority=3, stops=True) for name in ("one", "two")]
    result = send(serializer="pickle")
    mail = send("mail")
    jobs = [job for each in nodes for job in each.jobs() + each.jobs()]
    assert [job["task_id"] for job in jobs] == [mail.id], "other types are served all the while"
    celerys.scheduler.leave("celery")
    for each in nodes:
        row = redis_client.hgetall(Keys().key("worker", each.id))
        assert (row[b"priority"], row[b"stops"], row[b"slots"]) == (b"3", b"force", b"2")
        each.jobs(held=",".join(str(job["fence"]) for job in jobs))
    nodes[0].jobs(held="")
    nodes[1].jobs(held="")
    found = web.get(f"/api/jobs/{result.id}").json()
    assert (found["state"], found["reason"]) == ("dead", "rejected")
    assert "must be JSON" in found["why"]
    for each in nodes:
        each.leave()
    assert not redis_client.keys("*left_to_celery*")


# -- merged calls


@pytest.fixture
def merging(valkey, redis_client, serve):
    """An app whose calls merge, and its HTTP worker."""
    merging = app_for(valkey.url, result_backend=valkey.url, task_acks_late=True)

    def plan(city, number): ...

    ways = {"first": "first", "last": "last", "whole": "all"}
    for name, keep in ways.items():
        merging.task(name=name, affinity=Affinity("pdf", merge=Merge("{city}", keep=keep)), shared=False)(plan)
    yield merging, RemoteWorker(serve(of=merging), "pdf")
    merging.close()


@pytest.mark.parametrize("keep", ["first", "last"])
def test_merged_calls_are_one_job_with_a_result_each(merging, keep):
    app, node = merging
    node.leave()
    results = [app.tasks[keep].delay("HH", number) for number in range(3)]
    node = RemoteWorker(node.ask, "pdf")
    job = node.job()
    assert job["args"] == ["HH", {"first": 0, "last": 2}[keep]]
    assert node.jobs() == []
    node.start(job)
    assert node.end(job, result="plan").json()["state"] == "done"
    assert [each.get(timeout=20) for each in results] == ["plan"] * 3
    assert node.end(job, result="plan").json()["state"] == "done"


def test_failed_merged_run_fails_for_each_caller(merging):
    app, node = merging
    node.leave()
    results = [app.tasks["first"].delay("HH", number) for number in range(3)]
    node = RemoteWorker(node.ask, "pdf")
    node.end(node.job(), "failed", error={"type": "NoPlan", "message": "none"})
    for each in results:
        with pytest.raises(Exception, match="none"):
            each.get(timeout=20)


def test_run_that_keeps_all_calls_is_dead_lettered(merging, redis_client):
    app, node = merging
    app.tasks["whole"].delay("HH", 1)
    assert node.jobs() == []
    (letter,) = dead_letters.find_letters(Reader(redis_client, Keys()), dead_letters.LetterFilter())
    assert "keep='all', which is for workers in Python" in letter.why


# -- jobs that HTTP workers cannot run


def test_non_json_body_is_dead_lettered_with_the_reason(node, send, redis_client):
    send("late", "one", serializer="pickle")
    send("late", "two")
    assert node.job()["args"] == ["two"]
    (letter,) = dead_letters.find_letters(Reader(redis_client, Keys()), dead_letters.LetterFilter())
    assert "its body must be JSON" in letter.why
    assert redis_client.exists(Keys().key("message", letter.job_id)), "it can be replayed"


def test_unknown_task_is_dead_lettered_with_the_reason(node, app, redis_client):
    app.send_task("elsewhere.render", ("one",), queue="pdf")
    assert node.jobs() == []
    (letter,) = dead_letters.find_letters(Reader(redis_client, Keys()), dead_letters.LetterFilter())
    assert "NotRegistered: elsewhere.render" in letter.why


def test_hanging_result_backend_blocks_one_thread_per_job(node, send, redis_client, monkeypatch):
    result = send()
    job = node.job()
    goes_on, told = threading.Event(), []

    def hang(*_, **__):
        told.append(job)
        goes_on.wait(30)

    monkeypatch.setattr("celery_affinity.http_workers.job_end.report_end", hang)
    given = Scheduler(redis_client, Keys()), result.app, job["id"], job["fence"], node.joined["secret"], Outcome("done")
    hanging = threading.Thread(target=job_end.end_job, args=given)
    hanging.start()
    wait_until(lambda: told, 10, "it hangs")
    for _ in range(3):
        again = node.end(job)
        assert (again.status_code, "is being told" in error_of(again)) == (503, True)
    assert node.beat(job).status_code == 200
    goes_on.set()
    hanging.join()
    assert node.end(job).json()["state"] == "done"
    assert len(told) == 1


def test_end_that_celery_cannot_report_is_dead_lettered(node, send, app, redis_client, monkeypatch):
    send()
    job = node.job()
    monkeypatch.setattr("celery_affinity.http_workers.job_end.report_to_caller", lambda *_, **__: 1 / 0)
    assert node.end(job).json()["state"] == node.end(job).json()["state"] == "dead"
    (letter,) = dead_letters.find_letters(Reader(redis_client, Keys()), dead_letters.LetterFilter())
    assert "ZeroDivisionError" in letter.why
