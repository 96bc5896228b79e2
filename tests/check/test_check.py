"""`celery affinity check`, run as a user runs it, and the facts that it gathers of servers and fleets."""

import json
import os
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest
import redis

from celery_affinity.check import LEVELS, check, workers
from celery_affinity.check import gather as gather_module
from celery_affinity.check.gather import gather_facts
from celery_affinity.embedded import EmbeddedServer
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys
from celery_affinity.transport import app_api

from ..support.apps import APP, app_for
from ..support.command import affinity
from ..support.pages import blocks
from ..support.processes import ROOT, run_celery, start_worker, wait_until
from ..support.scripted_fleet import ScriptedFleet

QUIET = {"LEDGER": os.devnull}


@pytest.fixture
def fleet(redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


def checked(url, *words, app=APP, code=None, **env):
    """Run the command. Return the words of its findings by id, and its other fields."""
    run = run_celery(
        "-A", app, "affinity", "check", "--json", *words, env={**os.environ, "BROKER_URL": url, **QUIET, **env}
    )
    assert run.stdout, run.stderr
    found = json.loads(run.stdout)
    assert run.returncode == found["exit_code"]
    assert code in (None, run.returncode), run.stdout
    said = {}
    for finding in found.pop("findings"):
        assert finding["level"] == LEVELS[finding["id"]]
        said[finding["id"]] = f"{said.get(finding['id'], '')} {finding['what']}"
    return said, found


# -- real fleets


def test_a_fleet_with_a_stock_worker_and_one_in_another_namespace(valkey, redis_client):
    start_worker(APP, valkey.url, ["pdf", "excel"], name="ours", env=QUIET)
    stock = start_worker(APP, valkey.url, ["pdf"], name="stock", pool="threads", env={**QUIET, "TRANSPORT": "redis"})
    elsewhere = start_worker(
        "tests.support.apps.elsewhere", valkey.url, ["index"], name="else", pool="threads", env=QUIET
    )
    wait_until(lambda: redis_client.exists(Keys().key("heartbeats")), 30, "ours joins")
    stock.wait_ready(30)
    elsewhere.wait_ready(30)
    with app_for(valkey.url, broker_transport="redis") as producer:
        for priority in (0, 9):
            producer.send_task("x", queue="mail", priority=priority, ignore_result=True)
    said, found = checked(valkey.url, "--timeout", "3", code=2)
    assert [name.partition("@")[0] for name in found["workers"]] == ["else", "ours", "stock"]
    assert re.search(r"stock@\S+ consumes pdf with another transport", said["stock-worker"])
    assert "ours@" not in said["stock-worker"]
    assert re.search(r"else@\S+ of this app is in namespace 'elsewhere'", said["worker-elsewhere"])
    assert re.search(r"else@\S+ is 3,600 s ahead of the server's", said["clock-worker"])
    assert "ours@" not in said["clock-worker"]
    assert "2 message(s) lie in stock Celery's list of queue 'mail'" in said["stock-messages"]
    assert "'index', which task tests.support.apps.typed.index declares" in said["type-unserved"]
    assert "'pdf'" not in said["type-unserved"]
    assert not {"versions", "affinity-versions", "worker-mute", "nobody-ticks", "no-guard"} & set(said)


def test_a_healthy_fleet_passes_strictly():
    with EmbeddedServer(options=("--appendonly", "yes", "--maxmemory", "512mb")) as server:
        worker = start_worker(
            APP, server.url, ["pdf", "excel", "index", "mail", "celery"], name="all", pool="solo", env=QUIET
        )
        worker.wait_ready(30)
        with redis.Redis.from_url(server.url) as client:
            wait_until(lambda: client.exists(Keys().key("clock")), 20, "its dispatcher works")
        run = affinity(server.url, "check", "--strict", "--ignore", "hiredis")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "valkey" in run.stdout
    assert "1 alive, 1 worker answered" in run.stdout
    assert "results-share-memory" in run.stdout
    assert run.stdout.endswith("\n0 errors, 0 warnings, 1 note\n"), run.stdout


def test_check_without_the_fleet_writes_nothing(valkey, redis_client):
    said, found = checked(valkey.url, "--no-fleet", "--strict", code=1)
    assert "persistence-off" in said
    assert "no-workers" not in said
    assert found["workers"] is None
    ignoring, _ = checked(valkey.url, "--no-fleet", "--strict", "--ignore", "persistence-off", code=0)
    assert set(said) - set(ignoring) == {"persistence-off"}
    assert redis_client.keys() == []


# -- servers that are down, and passwords


def test_unresponsive_server_is_an_error_without_its_password():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(20)
        began = monotonic()
        run = affinity(f"redis://:geheim@127.0.0.1:{silent.getsockname()[1]}/0", "check")
        assert monotonic() - began < 25
    assert run.returncode == 2
    assert re.search(r"broker-down\s+The broker redis://:\*\*@\S+ does not answer", run.stdout)
    assert "Timeout reading" in run.stdout
    assert "geheim" not in run.stdout + run.stderr
    assert "Traceback" not in run.stderr


def test_each_connection_error_reports_the_server_down(new_app, monkeypatch):
    monkeypatch.setattr(app_api, "PATIENCE_S", 0.3)
    with EmbeddedServer(password="geheim") as server, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        for url, options, why in (
            (f"redis://127.0.0.1:{free.getsockname()[1]}", {}, "Connection refused"),
            ("redis://no-such-host.invalid", {}, "no-such-host"),
            (server.url.replace("geheim", "falsch"), {}, "invalid username-password"),
            (f"{server.url}/nonsense", {}, "Database"),
            (f"sentinel://:geheim@127.0.0.1:{server.port}", {}, "master_name"),
            (f"redis://127.0.0.1:{free.getsockname()[1]};{server.url}", {}, None),
        ):
            facts = gather_facts(new_app(url, broker_transport_options=options), fleet=False)
            assert (facts.down is None) == (why is None), facts.down
            assert why is None or why in facts.down
            assert "geheim" not in repr(facts)
            assert "falsch" not in repr(facts)


def test_server_that_stops_during_the_check_is_down(new_app, monkeypatch):
    monkeypatch.setattr(app_api, "PATIENCE_S", 0.5)
    with EmbeddedServer() as server, ThreadPoolExecutor() as executor, redis.Redis.from_url(server.url) as client:
        looking = executor.submit(gather_facts, new_app(server.url), answers_within_s=1.5)
        wait_until(lambda: client.exists("_kombu.binding.reply.celery.pidbox"), 20, "it asks the workers")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            assert "Timeout reading" in looking.result(10).down
        finally:
            server.kill()  # a stopped process does not get SIGTERM


@pytest.mark.timeout(20)
def test_workers_are_queried_once_without_kombus_retries(new_app, monkeypatch):
    monkeypatch.setattr(app_api, "PATIENCE_S", 0.3)
    with (
        EmbeddedServer() as server,
        gather_module._connection(new_app(server.url)) as connection,
        workers._Producers(connection).acquire() as producer,
    ):
        app_api.connect_app(connection)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(redis.TimeoutError):
                producer.publish({}, exchange="", routing_key="x", retry=True)
        finally:
            server.kill()


def test_workers_are_not_queried_above_95_percent_of_maxmemory(new_app, monkeypatch):
    asked = []
    monkeypatch.setattr(gather_module, "answers_of_workers", lambda *_: asked.append(1) or ())
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        app = new_app(server.url)
        for share, is_asked in ((0.80, True), (0.97, False), (2.0, False)):
            asked.clear()
            client.config_set("maxmemory", int(client.info("memory")["used_memory"] / share))
            facts = gather_facts(app, answers_within_s=0.2)
            assert bool(asked) == is_asked, share
            assert (facts.fleet.not_asked is None) == is_asked, share
            assert ("remote-control" in {each.id for each in check(facts)}) != is_asked, share


def test_other_transport_is_reported_and_the_server_checked(valkey, redis_client):
    said, found = checked(valkey.url, "--no-fleet", app="tests.support.apps.ordinary", code=2, STOCK="1")
    assert "broker_transport is None" in said["transport"]
    assert found["server"]


def test_other_broker_is_reported(new_app):
    facts = gather_facts(new_app("amqp://user:geheim@localhost"))
    assert "got: 'amqp://user:**@localhost" in facts.app.url_refused
    assert "broker-url" in [finding.id for finding in check(facts)]


def test_restricted_user_gets_the_readable_facts(as_user, fleet):
    fleet.publish("job", "drawing")
    said, _ = checked(as_user("observer"), code=2)
    assert "NOPERM" in said["remote-control"] or "no permissions" in said["remote-control"]
    assert "'drawing'" in said["type-waits"]
    assert "snapshots-only" in said, "CONFIG is not for observers, so whether there are snapshots is unknown"


# -- facts of a fleet


def test_server_facts_are_gathered(server, fleet, new_app):
    app = new_app(server.url, affinity_rarity="free")
    fleet.join("one", "pdf", slots=2)
    fleet.join("two", "pdf")
    for worker, stops in (("one", "force"), ("two", "shop.draw shop.store%20all")):
        fleet.scheduler.client.hset(Keys().key("worker", worker), "stops", stops)
    fleet.scheduler.heartbeat("two", loop_runs=False)
    fleet.publish("waits", "drawing")
    fleet.publish("later", "pdf", delay_s=60)
    fleet.bury("bad", "excel")
    fleet.scheduler.configure({"max_deliveries": "7"})
    fleet.scheduler.tick()
    said = {finding.id: finding.what for finding in check(gather_facts(app, answers_within_s=0.2))}
    assert "two@host is blocked" in said["worker-stalled"]
    assert "one@host, two@host" not in said["worker-mute"], "a loop that stands still is said once"
    assert "one@host" in said["worker-mute"]
    assert "1 job(s) of type 'drawing'" in said["type-waits"]
    assert "1 job(s)" in said["dead-letters"]
    assert "1 job(s)" in said["unserved"]
    assert "'free' in this app.conf, and 'capacity'" in said["settings-differ"]
    assert "affinity_max_deliveries is 7" in said["settings-changed"]
    assert "nobody-ticks" not in said
    members = {each.name: each for each in gather_facts(app, answers_within_s=0.2).fleet.members}
    assert members["one@host"].stops is None
    assert members["two@host"].stops == {"shop.draw", "shop.store all"}


def test_other_schema_is_reported_and_its_data_not_read(valkey, fleet, new_app):
    fleet.publish("job", "drawing")
    fleet.scheduler.client.set(Keys().key("schema"), "99")
    facts = gather_facts(new_app(valkey.url))
    assert facts.fleet is None
    assert "schema 99" in next(finding.what for finding in check(facts) if finding.id == "schema")


def test_different_cohort_maps_are_both_reported(valkey, redis_client, new_app):
    asked = {"answers_within_s": 0.2}
    split = new_app(valkey.url, affinity_cohorts={"ml": {"types": ["gpu"]}})
    assert "cohorts-differ" not in {each.id for each in check(gather_facts(split, **asked))}, "no fleet yet"
    split.send_task("shop.train", queue="gpu")
    assert "cohorts-differ" not in {each.id for each in check(gather_facts(split, **asked))}
    for other, own in (({}, "no cohorts"), ({"eu": {"types": ["eu.*"]}}, "eu=eu.*")):
        for fleet in (True, False):
            found = {
                each.id: each for each in check(gather_facts(new_app(valkey.url, affinity_cohorts=other), fleet=fleet))
            }
            assert "broker-down" not in found
            assert "'ml=gpu' (revision 1)" in found["cohorts-differ"].what
            assert repr(own) in found["cohorts-differ"].what


def test_workers_of_a_new_fleet_are_not_reported_idle(valkey, fleet, new_app):
    app = new_app(valkey.url)
    fleet.join("one", "pdf")
    facts = gather_facts(app, answers_within_s=0.2)
    assert facts.fleet.ticked_s is None
    assert "nobody-ticks" not in {each.id for each in check(facts)}
    joined = Keys().key("joined")
    fleet.scheduler.client.zincrby(joined, -60 * 1_000_000, "one")
    facts = gather_facts(app, answers_within_s=0.2)
    assert facts.fleet.members[0].age_s == pytest.approx(60, abs=5)
    assert "never" in next(each.what for each in check(facts) if each.id == "nobody-ticks")


def test_last_clock_step_is_reported_for_a_day(valkey, redis_client, new_app):
    app, now_us = new_app(valkey.url), int(redis_client.time()[0]) * 1_000_000
    for field, is_shown in (
        (f"{now_us} 3600000000", True),
        (f"{now_us + 3_600_000_000} -3600000000", True),
        (f"{now_us - 86_401_000_000} 3600000000", False),
        ("", False),
        ("garbage", False),
        (f"{now_us}", False),
        (f"{'9' * 5000} {'9' * 5000}", False),
        (b"\xff \xff", False),
    ):
        redis_client.hset(Keys().key("clock"), "stepped", field)
        found = {each.id: each.what for each in check(gather_facts(app, fleet=False))}
        assert ("clock-stepped" in found) == is_shown, field
    redis_client.delete(Keys().key("clock"))
    redis_client.set(Keys().key("clock"), "another type")
    assert "clock-stepped" not in {each.id for each in check(gather_facts(app, fleet=False))}


# -- the docs


def test_page_lists_every_finding_with_its_level():
    page = (ROOT / "docs/reference/check.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \|", page, re.MULTILINE)
    assert dict(rows) == {id_: str(level) for id_, level in LEVELS.items()}
    assert len(rows) == len(LEVELS)


def test_output_on_the_page_has_current_levels():
    shown = blocks("docs/reference/check.md")["output"]
    assert re.findall(r"^(ERROR|WARNING|NOTE) +([\w-]+)$", shown, re.MULTILINE)
    for level, id_ in re.findall(r"^(ERROR|WARNING|NOTE) +([\w-]+)$", shown, re.MULTILINE):
        assert LEVELS[id_] == level.lower()


def test_findings_name_their_cohort_and_report_a_down_one(valkey, redis_client, new_app):
    def asked(**cohorts):
        app = new_app(valkey.url, affinity_cohorts={"ml": {"types": ["gpu"]}, **cohorts})
        return [(each.id, each.what.partition(":")[0]) for each in check(gather_facts(app, answers_within_s=0.1))]

    sender = new_app(valkey.url, affinity_cohorts={"ml": {"types": ["gpu"]}})
    sender.send_task("work", queue="gpu")
    ScriptedFleet(Scheduler(redis_client, Keys(cohort="ml"))).bury("buried")
    found = asked()
    assert ("type-waits", "Cohort 'ml'") in found
    assert ("dead-letters", "Cohort 'ml'") in found
    assert "cohort-down" not in dict(found)
    redis_client.delete(Keys().key("schema"))
    found = dict(asked(eu={"types": ["eu"], "url": "redis://127.0.0.1:1/0"}))
    assert found["cohort-down"].startswith("Cohort 'eu' does not answer")


def test_keys_used_in_two_cohorts_are_found(valkey, redis_client, new_app):
    app = new_app(valkey.url, affinity_cohorts={"ml": {"types": ["gpu"]}})
    for cohort in ("default", "ml"):
        redis_client.hset(Keys(cohort=cohort).key("settings"), "tenants", "acme=max:3")
    for type_ in ("gpu", "pdf"):
        for keys in ({"exclusive": "printer", "tenant": "acme"}, {"exclusive": f"{type_} alone", "tenant": "free"}):
            app.send_task("work", queue=type_, **keys)
    found = {each.id: each.what for each in check(gather_facts(app, answers_within_s=0.1))}
    assert "keys: 'printer' (default, ml), 'tenant:acme' (default, ml)." in found["key-used-in-cohorts"]


def test_gathered_facts_have_run_times_waits_and_jobs_with_due_times(valkey, redis_client, new_app):
    app = new_app(valkey.url)
    empty = gather_facts(app, answers_within_s=0.1).fleet
    assert (empty.run_times, empty.due_jobs, empty.waits_p99_s) == (0, 0, {})
    app.send_task("shop.render", start_within=30, ignore_result=True)
    redis_client.hset(Keys().key("run_times"), "shop.render", "1 1 1 1 1 1 1 1")
    full = gather_facts(app, answers_within_s=0.1).fleet
    assert (full.run_times, full.due_jobs) == (1, 1)
    for name in ("run_times", "due_times"):
        redis_client.set(Keys().key(name), "another type")
    damaged = gather_facts(app, answers_within_s=0.1)
    assert damaged.down is None
    assert (damaged.fleet.run_times, damaged.fleet.due_jobs) == (0, 0)
