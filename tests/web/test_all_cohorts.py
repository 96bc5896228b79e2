"""The HTTP API covers all cohorts: it lists their rows, finds objects in their cohort, and works while one is down."""

import pytest
import redis

from celery_affinity.embedded.server import HOST
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys
from celery_affinity.web import asgi

from ..support.apps import app_for
from ..support.cluster import Cluster
from ..support.scripted_fleet import ScriptedFleet
from .conftest import Client

AWAY = "redis://127.0.0.1:1/0"


@pytest.fixture(params=["server", "cluster"])
def broker(request, valkey):
    """One server, or a cluster."""
    return valkey if request.param == "server" else request.getfixturevalue("cluster")


@pytest.fixture
def of_ml(broker):
    """A client of the server or node that has the cohort `ml`; the broker is empty."""
    node = broker.owner_of(Keys(cohort="ml").base) if isinstance(broker, Cluster) else broker
    with redis.Redis(HOST, node.port) as client:
        client.flushall()
        yield client


@pytest.fixture
def app(broker, of_ml):
    app = app_for(broker.url, result_backend="cache+memory://")
    app.conf.affinity_cohorts = {"ml": {"types": ["gpu*"]}, "eu": {"types": ["eu.*"], "url": AWAY}}

    @app.task(name="work", affinity="gpu")
    def work(): ...

    yield app
    app.close()


@pytest.fixture
def client(app):
    client = Client(asgi(app, allow=["*"]))
    yield client
    client.close()


def test_http_lists_all_cohorts_and_names_unavailable_ones(client, app, of_ml):
    job = client("POST", "/api/jobs", json={"task": "work"}, headers={"Idempotency-Key": "one"})
    assert (job.status_code, job.json()["cohort"]) == (201, "ml")
    again = client("POST", "/api/jobs", json={"task": "work"}, headers={"Idempotency-Key": "one"})
    assert (again.status_code, again.json()["id"]) == (200, job.json()["id"])
    app.send_task("work", queue="pdf")
    ScriptedFleet(Scheduler(of_ml, Keys(cohort="ml"))).bury("buried", "gpu.old")
    status = client.get("/api/status").json()
    assert {each["type"]: each["cohort"] for each in status["types"]} == {
        "gpu": "ml",
        "gpu.old": "ml",
        "pdf": "default",
    }
    assert list(status["down"]) == ["eu"]
    types = client.get("/api/types")
    assert types.headers["Cohorts-Down"] == "eu"
    assert {each["cohort"] for each in client.get("/api/jobs").json()["jobs"]} == {"default", "ml"}
    assert {each["cohort"] for each in client.get("/api/jobs?cohort=ml").json()["jobs"]} == {"ml"}
    assert client.get("/api/dead/buried").json()
    explained = client.get(f"/api/jobs/{job.json()['id']}?explain=true").json()
    assert explained["explanation"]["cohort"] == "ml"
    metrics = client.get("/metrics").text
    assert 'celery_affinity_up{cohort="eu"} 0' in metrics
    assert 'celery_affinity_pending_jobs{cohort="ml",type="gpu",mode="queued"} 1' in metrics


def test_http_changes_objects_in_their_cohort(client, app):
    id_ = client("POST", "/api/jobs", json={"task": "work"}).json()["id"]
    paused = client("POST", "/api/types/gpu/pause")
    assert (paused.status_code, paused.json()["pauses"][0]["cohort"]) == (202, "ml")
    assert client("POST", "/api/types/eu.pdf/pause").status_code == 503
    assert client("POST", "/api/types/gpu/resume").status_code == 202
    refused = client("PATCH", f"/api/jobs/{id_}", json={"type": "pdf"})
    assert refused.status_code == 422
    assert "type must be one of cohort 'ml'" in refused.json()["error"]["message"]
    done = client("PATCH", "/api/settings", json={"age_weight": 3})
    assert {each["cohort"] for each in done.json()} == {"default", "ml"}
    assert client("DELETE", f"/api/jobs/{id_}").status_code == 202
    joined = client("POST", "/api/workers", json={"name": "one", "types": ["gpu"], "slots": 1})
    assert joined.status_code == 400
    assert "types must be of cohort 'default'" in joined.json()["error"]["message"]


def test_jobs_of_one_cohort_are_listed_and_cancelled(client, app):
    for type_ in ("pdf", "gpu"):
        app.send_task("work", queue=type_)
    assert client("DELETE", "/api/jobs?cohort=ml").status_code == 400, "a filter is missing"
    dry = client("DELETE", "/api/jobs?cohort=ml&task=*&dry_run=1").json()
    assert ([each["type"] for each in dry["shown"]], dry.get("down")) == (["gpu"], None)
    moved = client("PATCH", "/api/jobs?cohort=default&task=*", json={"priority": 9}).json()
    assert (moved["done"], [each["type"] for each in moved["shown"]]) == (1, ["pdf"])
    assert client("DELETE", "/api/jobs?cohort=ml&task=*").json()["done"] == 1
    assert [each["type"] for each in client.get("/api/jobs").json()["jobs"]] == ["pdf"]
    assert client.get("/api/jobs?cohort=eu").json()["down"].keys() == {"eu"}


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("cohort=us", "cohort must be one of default, ml, eu, got: 'us'"),
        ("cohort=", "cohort must be one of default, ml, eu, got: ''"),
        ("cohort=ml&type=pdf", "cohort must be that of type 'pdf', default, got: 'ml'"),
    ],
)
def test_unknown_or_mismatched_cohort_is_refused(client, query, why):
    for refused in (client.get(f"/api/jobs?{query}"), client("DELETE", f"/api/jobs?task=*&{query}")):
        assert (refused.status_code, refused.json()["error"]["message"]) == (400, why)
