"""A job or request that would make an HTTP reply unreadable does not block a worker or the worker's other jobs."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.utils.json import dumps

from celery_affinity.http_workers import handout
from celery_affinity.reports import dead_letters
from celery_affinity.scheduler.messages import Claim
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys
from celery_affinity.web import asgi

from ..support.apps import APP
from ..support.from_outside import HALF, HEADERS, MARKED, PROPERTIES, nested, some
from ..support.messages import wire
from ..support.remote_workers import RemoteWorker
from ..support.scripted_fleet import ScriptedFleet
from .conftest import Client

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery


@pytest.fixture(scope="module")
def made():
    found = []
    yield found
    for each in found:
        each.close()


@pytest.fixture
def web(app, redis_client, made):
    if not made:
        made.append(Client(asgi(app)))
    return made[0]


def strict(text):
    """Parse JSON like a strict parser in another language."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def call(task_id="hostile", *, body=None, properties=None, **headers):
    """Return a task call's message for HTTP workers, with changes to its fields."""
    message = json.loads(wire(task_id, **{"task": f"{APP}.late", **headers}))
    if body is not None:
        message["body"], message["properties"]["body_encoding"] = body, "utf-8"
    message["properties"] |= properties or {}
    return json.dumps(message).encode()


def arguments(*args):
    return json.dumps([args, {}, {}])


#: Reason why a job cannot be given to an HTTP worker -> message of the job.
HOSTILE = {
    "NaN": call(body=arguments(float("nan"))),
    "infinity": call(body=arguments(1, [float("-inf")])),
    "a float that is too large": call(body="[[1e999], {}, {}]"),
    "arguments nested 900 deep": call(body=arguments(nested(900))),
    "arguments nested 110 deep": call(body=arguments(nested(110))),
    "arguments nested 5,000 deep": call(body="[" * 5000 + "]" * 5000),
    "half a surrogate pair": call(body=arguments(HALF)),
    "a list as task": call(task=["a", "b"]),
    "a name with half a surrogate pair": call(task=HALF),
    **{f"retries {each}": call(retries=each) for each in (*MARKED[:5], MARKED[8], MARKED[11], [1], "x", 1.5, -1)},
    **{f"id {each}": call(each) for each in (*MARKED[:5], MARKED[8], MARKED[11], MARKED[16], [1], {"a": 1}, 7, None)},
    "an id with half a surrogate pair": call(HALF),
    "a list as content type": json.dumps({**json.loads(call()), "content-type": ["a"]}).encode(),
    "a list as content encoding": json.dumps({**json.loads(call()), "content-encoding": nested(50)}).encode(),
    "no properties": json.dumps({**json.loads(call()), "properties": None}).encode(),
    "a list as properties": json.dumps({**json.loads(call()), "properties": [1]}).encode(),
    "a list as headers": json.dumps({**json.loads(call()), "headers": [1]}).encode(),
    "a number as body": json.dumps({**json.loads(call()), "body": 7}).encode(),
    "headers nested 200 deep": call(more=nested(200)),
}


def test_poll_dead_letters_only_jobs_without_strict_json(web, redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    node = RemoteWorker(web, "pdf", slots=100)
    for number, message in enumerate(HOSTILE.values()):
        fleet.publish(f"bad{number}", "pdf", message=message)
        fleet.publish(f"good{number}", "pdf", message=call(f"good{number}"))
    found, replies = [], []
    while True:
        reply = node.request("GET", f"/api/workers/{node.id}/jobs", params={"wait": 0})
        assert reply.status_code in (200, 204), reply.text
        if reply.status_code == 204 and not redis_client.llen(Keys().key("inbox", node.id)):
            break
        if reply.status_code == 200:
            replies.append(strict(reply.text))
            found += replies[-1]["jobs"]
    assert {each["task_id"] for each in found} == {f"good{number}" for number in range(len(HOSTILE))}
    letters = {
        each.job_id: each.why
        for each in dead_letters.find_letters(Reader(redis_client, Keys()), dead_letters.LetterFilter())
    }
    without = [name for number, name in enumerate(HOSTILE) if not letters.get(f"bad{number}")]
    assert not without
    why = {name: letters[f"bad{number}"] for number, name in enumerate(HOSTILE)}
    assert "nested more than 100 levels deep" in why["arguments nested 900 deep"]
    assert "JSON compliant" in why["NaN"]
    assert "header task must be a text, got: list of length 2" in why["a list as task"]
    assert all(strict(web.get(f"/api/dead/bad{number}").text) for number in range(len(HOSTILE)))


def test_job_with_nan_waits_for_a_celery_worker(web, redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("celery", "pdf")
    fleet.publish("long", "pdf")
    node = RemoteWorker(web, "pdf")
    fleet.publish("nan", "pdf", message=HOSTILE["NaN"])
    assert node.jobs() == []
    assert fleet.state("nan") == "pending"


@settings(max_examples=300)
@given(
    message=some(
        **{"content-type": st.just("application/json"), "content-encoding": st.just("utf-8")},
        body=st.sampled_from([arguments("a"), arguments(float("nan")), arguments(nested(900)), "{}"]),
        headers=HEADERS,
        properties=PROPERTIES,
    )
)
def test_every_message_becomes_strict_json_or_is_refused(message):
    app = SimpleNamespace(tasks={f"{APP}.tally": SimpleNamespace(acks_late=True)})
    claim = Claim("job", "1", "pdf", 0, 0, dumps(message).encode())
    try:
        job = handout._as_handed_out(None, app, claim, 0)
    except ValueError:
        return
    assert strict(json.dumps(job.__dict__)) is not None


def test_deeply_nested_request_is_refused(serve, redis_client):
    web = serve(allow=[f"{APP}.late"])
    found = {
        levels: web("POST", "/api/jobs", json={"task": f"{APP}.late", "args": nested(levels)}).status_code
        for levels in (99, 100, 500, 900)
    }
    assert found == {99: 201, 100: 400, 500: 400, 900: 400}
    reply = web("POST", "/api/workers", json={"name": nested(200), "types": ["pdf"]})
    assert "nested at most 100 levels deep" in reply.json()["error"]["message"]


def test_deeply_nested_result_is_refused_until_a_valid_one(web, app, redis_client):
    node = RemoteWorker(web, "pdf")
    result = app.tasks[f"{APP}.late"].apply_async(("one",))
    job = node.job()
    assert node.start(job).status_code == 200
    for _ in range(2):
        refused = node.end(job, result=nested(500))
        assert refused.status_code == 400
        assert "nested at most 100 levels deep" in refused.json()["error"]["message"]
    assert node.end(job, result=nested(90)).json()["state"] == "done"
    assert result.get(timeout=10) == nested(90)
