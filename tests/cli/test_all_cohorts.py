"""Commands without `--cohort` are about all cohorts: rows of each, jobs and types found where they are."""

import json
from contextlib import ExitStack

import pytest
import redis
from celery.bin.base import CLIContext
from click.testing import CliRunner
from kombu import pools

from celery_affinity import Cohort, jobs
from celery_affinity.cli import affinity
from celery_affinity.embedded.server import HOST, EmbeddedServer
from celery_affinity.lab.trace_file import read_trace
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.apps import app_for
from ..support.cluster import Cluster
from ..support.scripted_fleet import ScriptedFleet

TYPES = {"pdf": "default", "gpu.big": "ml", "eu.pdf": "eu"}


@pytest.fixture(scope="module")
def other():
    with EmbeddedServer() as server:
        yield server


@pytest.fixture(params=["server", "cluster"])
def broker(request, valkey):
    """One server, beside which `eu` has another one, or a cluster, where it is on another shard."""
    return valkey if request.param == "server" else request.getfixturevalue("cluster")


@pytest.fixture
def clients(broker, other):
    """A client for each cohort."""
    with ExitStack() as stack:
        if isinstance(broker, Cluster):
            if broker.owner is broker.owner_of(Keys(cohort="eu").base):  # an earlier test has moved the slot
                broker.migrate(broker.other)
                pools.reset()  # else the first call learns that the slot has moved
            nodes = {cohort: broker.owner_of(Keys(cohort=cohort).base) for cohort in ("default", "ml", "eu")}
            assert nodes["default"] is not nodes["eu"]
            yield {cohort: stack.enter_context(redis.Redis(HOST, node.port)) for cohort, node in nodes.items()}
            return
        here, there = (stack.enter_context(redis.Redis.from_url(each.url)) for each in (broker, other))
        here.flushall()
        yield {"default": here, "ml": here, "eu": there}
        here.flushall()
        there.flushall()


@pytest.fixture
def app(broker, other, clients):
    app = app_for(broker.url, task_publish_retry=False)
    its_server = None if isinstance(broker, Cluster) else other.url
    app.conf.affinity_cohorts = {"ml": Cohort(["gpu*"]), "eu": Cohort(["eu.*"], url=its_server)}
    yield app
    app.close()


@pytest.fixture
def sent(app):
    """The task ids of one call of each type."""
    return {type_: app.send_task("proj.work", queue=type_).id for type_ in TYPES}


@pytest.fixture
def down(app, broker):
    """An app of whose cohorts `eu` is down."""
    other = app_for(broker.url)
    other.conf.affinity_cohorts = {"ml": Cohort(["gpu*"]), "eu": Cohort(["eu.*"], url="redis://127.0.0.1:1/0")}
    yield other
    other.close()


def run(app, *words, code=0):
    done = CliRunner().invoke(affinity, words, obj=CLIContext(app=app, no_color=True, workdir=None))
    assert done.exit_code == code, (done.output, done.exception)
    return done


def shown(app, *words, code=0):
    return json.loads(run(app, *words, "--json", code=code).stdout)


def fleet_of(clients, cohort):
    return ScriptedFleet(Scheduler(clients[cohort], Keys(cohort=cohort)))


def pending(clients, type_):
    cohort = TYPES[type_]
    return Reader(clients[cohort], Keys(cohort=cohort)).pending(type_)


def test_reports_show_the_cohort_of_each_row(app, sent, clients):
    fleet_of(clients, "ml").join("worker", "gpu.small")
    status = shown(app, "status")
    types = {each["type"]: each["cohort"] for each in status["types"]}
    assert types == {**TYPES, "gpu.small": "ml"}
    assert [each["cohort"] for each in status["workers"]] == ["ml"]
    assert "down" not in status
    text = run(app, "status").stdout
    assert text.splitlines()[2].split()[:2] == ["cohort", "type"]
    for command in ("pending", "jobs"):
        assert {each["type"]: each["cohort"] for each in _rows(shown(app, command))} == TYPES
    assert "cohort " in run(app, "top", "--count", "1").stdout
    its = run(app, "--cohort", "ml", "status").stdout
    assert its.splitlines()[2].split()[0] == "type"
    assert "eu.pdf" not in its


def _rows(found):
    return found["jobs"] if isinstance(found, dict) else found


def test_requeues_of_all_cohorts_outlive_their_jobs(app, sent, clients):
    fleet = fleet_of(clients, "eu")
    fleet.join("w", "eu.pdf")
    (claim,) = fleet.inbox("w")
    fleet.scheduler.recover("w")
    (row,) = shown(app, "requeues")
    assert (row["cohort"], row["worker"], row["cause"]) == ("eu", "w@host", "died")
    keys = Keys(cohort="eu")
    clients["eu"].delete(keys.key("job", claim.job_id), keys.key("task", row["task_id"]))
    assert "the worker died" in run(app, "explain", row["task_id"], code=1).stdout


def test_memory_report_has_each_cohorts_server(app, sent):
    found = {server["cohort"]: server for server in shown(app, "memory")}
    assert {*found} == {*TYPES.values()}
    for type_, cohort in TYPES.items():
        assert [row["keys"] for row in found[cohort]["data"] if (row["kind"], row["type"]) == ("messages", type_)] == [
            1
        ]
    assert run(app, "memory", "--sample", "100").stdout.count("used ") == 3


def test_job_pages_list_one_cohort_after_another(app, sent):
    found, cursor, page = [], (), {"cursor": ""}
    while page["cursor"] is not None:
        page = shown(app, "jobs", "list", "--limit", "1", *cursor)
        found += [(each["type"], each["cohort"]) for each in page["jobs"]]
        cursor = ("--cursor", page["cursor"])
    assert dict(found) == TYPES
    assert len(found) == len(TYPES)
    assert "cursor must be" in run(app, "jobs", "list", "--cursor", "nowhere:x", code=1).output


def test_commands_find_the_cohort_of_a_job_or_type(app, sent, clients):
    for type_, id_ in sent.items():
        assert shown(app, "explain", id_)["cohort"] == TYPES[type_]
        assert jobs(app).get(id_).cohort == TYPES[type_]
    assert "unknown" in run(app, "explain", "none", code=1).stdout
    (pause,) = shown(app, "pause", "gpu.big")
    assert (pause["name"], pause["cohort"]) == ("gpu.big", "ml")
    assert len(shown(app, "pause", "--all")) == 1 + len(TYPES)
    run(app, "resume", "--all")
    run(app, "resume", "gpu.big")
    assert shown(app, "pause") == []


def test_jobs_are_cancelled_moved_and_retried_in_their_cohort(app, sent, clients):
    assert shown(app, "cancel", sent["eu.pdf"])[0]["done"]
    assert shown(app, "prioritise", sent["gpu.big"], "--priority", "7")[0]["done"]
    refused = run(app, "move", sent["gpu.big"], "--to", "pdf", code=1)
    assert "type must be one of cohort 'ml', in which the jobs are, got: 'pdf' of cohort 'default'" in refused.output
    refused = run(app, "move", "--task", "proj.*", "--to", "gpu.small", "--yes", code=1)
    assert "type must be one of cohort 'default'" in refused.output
    assert shown(app, "move", sent["gpu.big"], "--to", "gpu.small")[0]["done"]
    assert shown(app, "cancel", "--task", "proj.*", "--yes")["done"] == 2
    assert pending(clients, "pdf") == pending(clients, "gpu.big") == pending(clients, "eu.pdf") == 0


def test_dead_letters_of_all_cohorts_are_listed_replayed_and_dropped(app, sent, clients):
    for cohort in ("default", "ml", "eu"):
        fleet_of(clients, cohort).bury(f"buried-{cohort}")
    assert {each["cohort"] for each in shown(app, "dead", "list")} == {"default", "ml", "eu"}
    assert "cohort      eu" in run(app, "dead", "show", "buried-eu").stdout
    assert shown(app, "dead", "drop", "buried-eu", "--yes") == {"dropped": 1, "unknown": []}
    run(app, "dead", "drop", "buried-eu", "--yes", code=1)
    assert shown(app, "dead", "drop", "--all", "--yes")["dropped"] == 2


def test_settings_limits_and_quotas_change_in_all_cohorts(app, clients):
    changed = shown(app, "settings", "set", "age_weight", "3")
    assert {each["cohort"]: float(each["value"]) for each in changed} == {"default": 3, "ml": 3, "eu": 3}
    run(app, "--cohort", "ml", "settings", "set", "age_weight", "4")
    values = {each["cohort"]: float(each["value"]) for each in shown(app, "settings") if each["name"] == "age_weight"}
    assert values == {"default": 3, "ml": 4, "eu": 3}
    assert shown(app, "keys", "set", "customer.*", "2")["eu"] == {"customer.*": 2}
    assert run(app, "tenants", "set", "acme", "--max", "2").stdout.count("cohort ") == 3
    assert "no limit is set for 'other'" in run(app, "keys", "reset", "other", code=1).output
    for name in ("keys reset customer.*", "tenants reset acme", "settings reset --all"):
        run(app, *name.split())


def test_scale_shows_the_cohort_of_each_profile(app, sent, clients):
    for cohort, type_ in (("default", "pdf"), ("ml", "gpu.big")):
        fleet_of(clients, cohort).join(f"worker-{cohort}", type_)
    assert {each["profile"]: each["cohort"] for each in shown(app, "scale")} == {
        "pdf": "default",
        "gpu.big": "ml",
        "eu.pdf": "eu",
    }
    (only,) = shown(app, "scale", "gpu.big")
    assert only["cohort"] == "ml"


def test_trace_records_the_named_cohort(app, sent, tmp_path):
    record = ("lab", "record", "--for", "1s", "--output", str(tmp_path / "trace.jsonl"))
    said = run(app, *record, code=2).output
    assert "a trace covers one cohort: name it before the command, --cohort, one of default, ml, eu" in said
    assert shown(app, "--cohort", "ml", *record)["jobs"] == 1
    assert "'gpu.big'" in repr(read_trace(tmp_path / "trace.jsonl").jobs)
    assert "got: 'nowhere'" in run(app, "--cohort", "nowhere", *record, code=1).output


def test_check_covers_the_servers_of_all_cohorts(app, broker, sent, down):
    for each in (app, down):
        each.conf.result_backend = broker.url
    found = shown(app, "check", code=2)["findings"]
    assert {each["id"] for each in found if each["level"] == "error"} == {"type-waits"}
    starts = {each["what"].partition(":")[0] for each in found if each["id"] == "memory-unlimited"}
    assert "Cohort 'eu'" in starts
    assert isinstance(broker, Cluster) or "Cohort 'ml'" not in starts, "it has the server of the cohort `default`"
    assert "cohort-down" in {each["id"] for each in shown(down, "check", code=2)["findings"]}


def test_metrics_have_a_cohort_label_with_several_cohorts(app, sent, down):
    text = run(app, "metrics", "--once").stdout
    assert 'celery_affinity_pending_jobs{cohort="eu",type="eu.pdf",mode="queued"} 1' in text
    assert 'celery_affinity_up{cohort="ml"} 1' in text
    assert "cohort=" not in run(app, "--cohort", "ml", "metrics", "--once").stdout
    assert 'celery_affinity_up{cohort="eu"} 0' in run(down, "metrics", "--once").stdout


def test_down_cohort_is_reported_and_others_are_shown(down, sent, clients):
    done = run(down, "status")
    assert done.stderr.startswith("cohort 'eu' does not answer: ")
    assert done.stderr.count("\n") == 1
    assert "gpu.big" in done.stdout
    assert list(shown(down, "status")["down"]) == ["eu"]
    assert len(shown(down, "jobs")["jobs"]) == 2
    said = run(down, "explain", sent["eu.pdf"], code=1).stdout
    assert "it is in no cohort that answers; cohort 'eu' does not answer" in said
    assert shown(down, "cancel", "--task", "proj.*", "--yes", code=1)["done"] == 2
    assert "cohort 'eu' does not answer" in run(down, "pause", "eu.pdf", code=1).stderr
    assert len(run(down, "settings", "set", "age_weight", "3", "--json", code=1).stdout) > 2
