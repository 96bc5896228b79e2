"""Flower, started as users start it, beside real workers: its pages show the counts of `affinity status`."""

import json
import re
import tomllib
import urllib.error
import urllib.request

import pytest
import redis

from celery_affinity import cli
from celery_affinity.embedded import EmbeddedServer
from celery_affinity.reports.status import MAX_CLAIMS_READ, Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.constants import REASONS
from celery_affinity.schema.keys import Keys
from celery_affinity.versions import SOURCE

from ..support import certificates
from ..support.apps import APP
from ..support.certificates import tls_options
from ..support.command import affinity
from ..support.flower import COLUMNS, UNKNOWN, Flower
from ..support.pages import blocks, commands
from ..support.processes import ROOT, start_worker, wait_until
from ..support.scripted_fleet import ScriptedFleet
from ..support.sentinel import Sentinel
from ..support.servers import WITH_TLS, needs_tls

pytestmark = pytest.mark.usefixtures("configure")


def warnings(flower):
    return [line for line in flower.process.log().splitlines() if "metrics of celery_affinity" in line]


def status(url):
    found = affinity(url, "status", "--json")
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


def test_flower_shows_what_status_says(valkey, redis_client, load_app, tmp_path):
    app = load_app(APP)
    env = {"LEDGER": str(tmp_path / "ledger")}
    start_worker(APP, valkey.url, ["pdf"], concurrency=2, pool="threads", name="specialist", extra=["-E"], env=env)
    start_worker(
        APP, valkey.url, ["pdf", "excel"], concurrency=2, pool="threads", name="versatile", extra=["-E"], env=env
    )
    report = Report(Reader(redis_client, Keys()))
    wait_until(lambda: len(report.status().workers) == 2, 30, "both workers join")
    app.tasks[f"{APP}.reject"].delay("bad")
    wait_until(lambda: report.status().dead == 1, 10, "a dead letter")
    flower = Flower(valkey.url)
    wait_until(lambda: flower.workers().keys() == {"specialist", "versatile"}, 60, "Flower shows both workers")
    wait_until(lambda: flower.get("/metrics").count("flower_worker_online{") == 2, 60, "Flower hears of events")
    # Until the workers have said which queues they serve, Flower shows the default one.
    wait_until(lambda: "celery" not in flower.lengths(), 60, "Flower knows the queues")

    pdf, excel = app.tasks[f"{APP}.pdf"], app.tasks[f"{APP}.excel"]
    for number in range(3):
        pdf.delay(f"long pdf {number}", 600)
    excel.delay("long excel", 600)
    wait_until(lambda: not any(each.free for each in report.status().workers), 10, "all slots are busy")
    for number in range(3):
        pdf.delay(f"pdf {number}")
    pdf.apply_async(("asked",), on_demand=True)
    pdf.apply_async(("later",), countdown=600)
    excel.apply_async(("later too",), countdown=600)
    excel.delay("excel")
    pdf.apply_async(("drawing 1",), affinity="drawing")
    pdf.apply_async(("drawing 2",), affinity="drawing")
    redis_client.lpush("drawing", *["sent by a producer on stock Redis"] * 3)
    redis_client.lpush("drawing\x06\x163", "with a priority")

    queued = ("started_jobs_total", "queued", "pdf")
    wait_until(lambda: flower.metrics().get(queued, 0) >= 3, 20, "the workers hand over what they counted")
    before = status(valkey.url)
    metrics = flower.metrics()
    after = status(valkey.url)
    types = {each["type"]: each for each in before["types"]}
    assert {name: (each["pending"], each["claimed"]) for name, each in types.items()} == {
        "drawing": (2, 0),
        "excel": (1, 1),
        "pdf": (4, 3),
    }

    in_lists = {"drawing": 4}  # no worker serves the queue, so the messages stay there
    consumers = {"drawing": 0, "excel": 1, "pdf": 2}
    assert flower.lengths() == {
        name: {
            "messages": each["pending"] + in_lists.get(name, 0),
            "messages_ready": each["pending"] + in_lists.get(name, 0),
            "messages_unacknowledged": each["claimed"],
            "consumers": consumers[name],
        }
        for name, each in types.items()
    }
    assert flower.page() == {
        "drawing": {"messages": "6", "unacked": "0", "ready": "6", "consumers": "0", "idle since": UNKNOWN},
        "excel": {"messages": "1", "unacked": "1", "ready": "1", "consumers": "1", "idle since": UNKNOWN},
        "pdf": {"messages": "4", "unacked": "3", "ready": "4", "consumers": "2", "idle since": UNKNOWN},
    }

    oldest = {name: metrics.pop(("oldest_pending_age_seconds", name)) for name in types}
    for earlier, later in zip(before["types"], after["types"], strict=True):
        assert 0 < earlier["oldest_wait_s"] <= oldest[earlier["type"]] <= later["oldest_wait_s"]
    of_types = [
        {
            ("pending_jobs", "queued", name): each["pending"] - each["on_demand"],
            ("pending_jobs", "on_demand", name): each["on_demand"],
            ("claimed_jobs", name): each["claimed"],
            ("kept_back_jobs", "key", name): each["kept_back"],
            ("kept_back_jobs", "pause", name): 0,
            ("kept_back_jobs", "type limit", name): each["kept_back_by_limit"],
            ("kept_back_jobs", "reserve", name): 0,
            ("paused", name): 0,
            ("unserved_jobs", name): each["pending"] if each["unserved"] else 0,
            ("slots", name): each["slots"],
            ("free_slots", name): each["free"],
            ("slow_workers", name): 0,
        }
        for name, each in types.items()
    ]
    expected = {key: value for each in of_types for key, value in each.items()}
    grows = ("published_jobs", "started_", "ended_", "overtaking_", "profile_", "reserved_", "wait", "run_", "wanted_")
    assert {name: each for name, each in metrics.items() if not name[0].startswith(grows)} == expected | {
        ("up",): 1,
        ("locality_hits_total",): 0,
        ("locality_misses_total",): 0,
        ("keys_waiting",): 0,
        ("paused_keys",): 0,
        ("scheduled_jobs",): before["scheduled"],
        ("workers", "accepting"): len(before["workers"]),
        ("workers", "draining"): 0,
        ("workers", "stalled"): 0,
        ("dead_letters",): before["dead"],
        ("overdue_jobs",): 0,
        **{("dead_lettered_jobs_total", reason): 0 for reason in REASONS},
        ("dead_lettered_jobs_total", "rejected"): before["counters"]["rejected"],
        ("published_unserved_jobs_total",): before["counters"]["unserved"],
        **dict.fromkeys([("recurring_fired_total",), ("recurring_reset_total",)], 0),
        **dict.fromkeys([("preempted_total",), ("preempted_seconds_total",)], 0),
        **{("batch_size_bucket", each): 0 for each in (*(f"{2.0**power}" for power in range(1, 17)), "+Inf")},
        **dict.fromkeys([("batch_size_count",), ("batch_size_sum",)], 0),
    }
    assert (metrics[("scheduled_jobs",)], metrics[("dead_letters",)]) == (2, 1)
    assert (metrics[("unserved_jobs", "drawing")], metrics[("pending_jobs", "on_demand", "pdf")]) == (2, 1)

    wait_until(lambda: "long excel" in flower.get("/api/tasks"), 30, "Flower shows the tasks")
    assert not warnings(flower)


# -- the broker's address


def test_prefix_namespace_and_password(configure, tmp_path):
    options = {"global_keyprefix": "shop:", "namespace": "till"}
    configure(options)
    with EmbeddedServer(password="s@cret/") as server, redis.Redis(port=server.port, password="s@cret/") as client:
        url = f"redis://:s%40cret%2F@127.0.0.1:{server.port}/0"
        ScriptedFleet(Scheduler(client, Keys(**options))).publish("job", "pdf")
        client.lpush("shop:pdf", "sent by a producer on stock Redis")
        flower = Flower(url, env={"RESULT_URL": "cache+memory://"})
        assert flower.lengths()["pdf"]["messages"] == 2
        assert flower.metrics()[("unserved_jobs", "pdf")] == 1
        assert "s@cret" not in flower.process.log()


def test_sentinel(configure, tmp_path):
    configure({"master_name": "main"})
    with EmbeddedServer() as master, redis.Redis.from_url(master.url) as client:
        config = tmp_path / "sentinel.conf"
        config.write_text(f"sentinel monitor main 127.0.0.1 {master.port} 1\n")
        with EmbeddedServer() as free:
            port = free.port
        with Sentinel(port, config) as sentinel:
            ScriptedFleet(Scheduler(client, Keys())).publish("job", "pdf")
            flower = Flower(sentinel.url, env={"RESULT_URL": master.url})
            assert flower.lengths()["pdf"]["messages"] == 1
            assert flower.metrics()[("unserved_jobs", "pdf")] == 1


@needs_tls
def test_tls_with_the_settings_that_flower_reads(configure, tmp_path):
    certificates.make(tmp_path)
    trust = {"ssl_cert_reqs": "required", "ssl_ca_certs": str(tmp_path / "ca.pem")}
    configure({}, broker_use_ssl=trust)
    with EmbeddedServer() as free:
        port = free.port
    server = EmbeddedServer(executable=WITH_TLS, options=tls_options(port, tmp_path))
    with server, redis.Redis.from_url(server.url) as client:
        ScriptedFleet(Scheduler(client, Keys())).publish("job", "pdf")
        flower = Flower(f"rediss://127.0.0.1:{port}/0", env={"RESULT_URL": server.url})
        assert flower.lengths()["pdf"]["messages"] == 1
        assert flower.metrics()[("unserved_jobs", "pdf")] == 1


def test_a_socket_has_metrics_though_flower_has_no_page_for_it(tmp_path):
    path = tmp_path / "redis.sock"
    with EmbeddedServer(options=("--unixsocket", str(path))) as server, redis.Redis.from_url(server.url) as client:
        ScriptedFleet(Scheduler(client, Keys())).publish("job", "pdf")
        flower = Flower(f"socket://{path}", env={"RESULT_URL": server.url})
        assert flower.metrics()[("unserved_jobs", "pdf")] == 1
        with pytest.raises(urllib.error.HTTPError):
            flower.page()


@pytest.mark.slow
def test_a_cluster(cluster, valkey):
    with cluster.client() as client:
        ScriptedFleet(Scheduler(client, Keys())).publish("job", "pdf")
    flower = Flower(cluster.url, env={"RESULT_URL": valkey.url})
    assert flower.lengths()["pdf"]["messages"] == 1
    assert flower.page()["pdf"]["messages"] == "1"
    assert flower.metrics()[("unserved_jobs", "pdf")] == 1


# -- faults


def test_a_broker_that_goes_away_and_comes_back():
    with EmbeddedServer() as server:
        flower = Flower(server.url, env={"RESULT_URL": "cache+memory://"})
        assert flower.metrics()[("up",)] == 1
        server.kill()
        assert flower.metrics() == {("up",): 0}
        assert "flower_events" in flower.get("/metrics")
        (warning,) = warnings(flower)
        assert "because they cannot be read" in warning
        server.start()
        with redis.Redis.from_url(server.url) as client:
            ScriptedFleet(Scheduler(client, Keys())).publish("job", "pdf")
        wait_until(lambda: flower.metrics().get(("unserved_jobs", "pdf")) == 1, 20, "the figures are back")
        assert flower.lengths()["pdf"]["messages_ready"] == 1


def test_data_of_another_version_leaves_flower_as_it_is():
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        client.set(Keys().key("schema"), "99")
        client.lpush("celery", "a message")
        flower = Flower(server.url)
        assert flower.lengths() == {"celery": {"messages": 1}}
        assert flower.page() == {"celery": {"messages": "1", **dict.fromkeys(COLUMNS[1:], UNKNOWN)}}
        assert flower.metrics() == {("up",): 0}
        (warning,) = warnings(flower)
        assert "has schema 99" in warning


# -- costs


def test_claims_of_versatile_workers_are_unknown_if_they_are_too_many_to_read(valkey, fleet, redis_client):
    fleet.join("one", "pdf", "excel", slots=MAX_CLAIMS_READ + 1)
    fleet.join("two", "index", slots=1)
    fleet.publish("indexed", "index")
    for number in range(MAX_CLAIMS_READ):
        fleet.publish(f"job{number}", "pdf")
    report = Report(Reader(redis_client, Keys()))
    claimed = {each.type: each.claimed for each in report.status().types}
    assert claimed == {"pdf": MAX_CLAIMS_READ, "excel": 0, "index": 1}
    fleet.publish("one-too-many", "excel")
    claimed = {each.type: each.claimed for each in report.status().types}
    assert claimed == {"pdf": None, "excel": None, "index": 1}
    flower = Flower(valkey.url)
    assert flower.page()["pdf"] == {
        "messages": "0", "unacked": UNKNOWN, "ready": "0", "consumers": "1", "idle since": UNKNOWN,
    }  # fmt: skip
    assert {name[1] for name in flower.metrics() if name[0] == "claimed_jobs"} == {"index"}


# -- the promises of docs/how-to/monitoring.md


PAGE = ROOT / "docs/how-to/monitoring.md"


def test_the_pages_commands_and_what_they_say(valkey, fleet):
    page = blocks(PAGE)
    install, start = commands(page["start"])
    assert install == ["pip", "install", f"celery-affinity[flower] @ {SOURCE}"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "flower" in extras
    assert start == ["celery", "-A", "shop", "flower", "--port=5555"]
    for number in range(3):
        fleet.publish(f"job{number}", "drawing")
    flower = Flower(valkey.url, command=["-m", *[APP if word == "shop" else word for word in start[:-1]]])
    (curl,) = commands(page["api"])
    rows = json.loads(flower.get(curl[-1].removeprefix("http://localhost:5555")))["active_queues"]
    (row,) = [row for row in rows if row["name"] == "drawing"]
    assert row == {
        "name": "drawing", "messages": 3, "messages_ready": 3, "messages_unacknowledged": 0, "consumers": 0,
    }  # fmt: skip
    assert all(f"`{name}`" in PAGE.read_text() for name in row if name != "name")
    assert "at `localhost:5555/metrics`" in PAGE.read_text()


def test_the_pages_affinity_commands_are_there():
    alerts = PAGE.read_text().partition("## Alerts")[2].partition("\n## ")[0]
    known = "|".join(cli.affinity.list_commands(None))
    words = re.findall(rf"`(?:celery -A shop affinity )?((?:{known})(?: list)?)\b[^`]*`", alerts)
    assert {"status", "pending", "explain", "dead list", "jobs", "pause", "top"} <= set(words)
    for each in set(words):
        command = cli.affinity
        for word in each.split():
            command = command.get_command(None, word)
