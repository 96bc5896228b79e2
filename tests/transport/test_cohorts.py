"""Calls go to the cohort of their type, in separate keys or on a separate server; a different map is refused."""

import gc
import threading

import pytest
import redis
from kombu.exceptions import OperationalError

from celery_affinity import (
    Affinity,
    Cohort,
    Exclusive,
    Merge,
    OptionError,
    PublishError,
    Rate,
    SettingError,
    publish_many,
)
from celery_affinity.embedded.server import EmbeddedServer, free_port
from celery_affinity.scheduler import server_info
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys
from celery_affinity.transport.app_api import channel_of, connect_app, scheduler_of
from celery_affinity.transport.transport import Transport

from ..support import since
from ..support.apps import app_for

ON_ONE_SERVER = {"ml": Cohort(["gpu*"]), "eu": Cohort(["eu.*"])}


@pytest.fixture(scope="module")
def other():
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def other_client(other):
    with redis.Redis.from_url(other.url) as client:
        yield client
        client.flushall()


@pytest.fixture
def make_app(valkey, redis_client):
    apps = []

    def make(cohorts=None, **conf):
        app = app_for(valkey.url, task_publish_retry=False, **conf)
        if cohorts is not None:
            app.conf.affinity_cohorts = cohorts
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def on_two_servers(make_app, other):
    return make_app({"ml": Cohort(["gpu*"]), "eu": {"types": ["eu.*"], "url": other.url}})


def pending(client, cohort, type_):
    return Reader(client, Keys(cohort=cohort)).pending(type_)


def send(app, type_, **options):
    return app.send_task("proj.work", queue=type_, **options)


def test_call_is_stored_in_its_cohort_and_server(on_two_servers, redis_client, other_client):
    for type_ in ("pdf", "gpu.big", "gpu.big", "eu.pdf"):
        send(on_two_servers, type_)
    assert pending(redis_client, "default", "pdf") == 1
    assert pending(redis_client, "ml", "gpu.big") == 2
    assert pending(other_client, "eu", "eu.pdf") == 1
    assert pending(redis_client, "default", "gpu.big") == pending(redis_client, "default", "eu.pdf") == 0
    assert not other_client.keys("*{affinity:default}*")


def test_app_ignores_the_cohorts_of_a_deleted_app(valkey, redis_client):
    """kombu's pools outlive an app, and their channels keep its cohorts."""
    for cohorts, cohort in (
        ({}, "default"),
        ({"ml": Cohort(["gpu"])}, "ml"),
        ({"other": Cohort(["gpu"])}, "other"),
        ({}, "default"),
    ):
        app = app_for(valkey.url, affinity_cohorts=cohorts)
        send(app, "gpu")
        assert pending(redis_client, cohort, "gpu") == 1
        redis_client.flushdb()
        app.close()
        del app
        gc.collect()


def test_cohort_map_changed_in_place_applies_to_the_next_app(valkey, redis_client):
    cohorts = {}
    for expected in ("default", "ml"):
        app = app_for(valkey.url, affinity_cohorts=cohorts)
        send(app, "pdf")
        cohorts["ml"] = Cohort(["gpu"])
        send(app, "gpu")
        assert pending(redis_client, expected, "gpu") == 1
        redis_client.flushdb()
        app.close()
        del app
        gc.collect()


def test_apps_with_different_cohort_passwords_have_separate_pools():
    options = []
    for password in ("one", "one", "two"):
        cohorts = {"ml": Cohort(["gpu"], url=f"redis://:{password}@nowhere")}
        app = app_for("redis://nowhere", affinity_cohorts=cohorts)
        options.append(app.connection_for_write().transport_options)
        del app
        gc.collect()
    assert options[0] == options[1] != options[2]


def test_publish_many_and_batches_reach_their_cohorts(on_two_servers, redis_client, other_client):
    @on_two_servers.task(affinity="eu.pdf")
    def render(page): ...

    publish_many(render, [(page,) for page in range(3)])
    assert pending(other_client, "eu", "eu.pdf") == 3
    with on_two_servers.producer_pool.acquire() as producer:
        if hasattr(producer, "batch"):
            with producer.batch():
                for type_ in ("pdf", "eu.pdf", "gpu"):
                    send(on_two_servers, type_, producer=producer)
            assert pending(redis_client, "default", "pdf") == pending(redis_client, "ml", "gpu") == 1
            assert pending(other_client, "eu", "eu.pdf") == 4


def test_queues_are_counted_and_purged_in_their_cohort(on_two_servers, other_client):
    send(on_two_servers, "eu.pdf")
    send(on_two_servers, "eu.pdf", countdown=100)
    with on_two_servers.connection_for_write() as connection:
        channel = connection.default_channel
        assert channel.queue_declare("eu.pdf", passive=True).message_count == 2
        assert channel.queue_purge("eu.pdf") == 2
    assert pending(other_client, "eu", "eu.pdf") == 0


def test_revoke_ends_pending_jobs_of_all_cohorts(on_two_servers, redis_client, other_client):
    calls = [send(on_two_servers, type_) for type_ in ("pdf", "gpu", "eu.pdf")]
    on_two_servers.control.revoke([each.id for each in calls])
    assert pending(redis_client, "default", "pdf") == pending(redis_client, "ml", "gpu") == 0
    assert pending(other_client, "eu", "eu.pdf") == 0


def test_publish_refuses_a_type_matching_two_cohorts(make_app, redis_client):
    app = make_app({"ml": Cohort(["gpu*"]), "eu": Cohort(["*.eu"])})
    with pytest.raises(SettingError, match=r"type 'gpu.eu' matches"):
        send(app, "gpu.eu")
    assert not redis_client.keys("*job:*")


def name_of(customer=None):
    return customer


def made_key(args, kwargs):
    return "made"


@pytest.fixture
def app_with_keys(make_app):
    app = make_app(
        {"ml": Cohort(["gpu*"])},
        affinity_tenants={"acme": {"max": 3}, "*": {"weight": 2}},
        affinity_task_rules={"shop.mail": {"tenant": "{customer}"}},
        affinity_task_types={"shop.by_name": "gpu"},
        task_routes={"shop.by_route": {"queue": "gpu"}, "shop.routed": {"affinity": "pdf"}},
    )
    for name, affinity in {
        "draw": Affinity("gpu", exclusive="customer:{customer}"),
        "render": Affinity("pdf", exclusive="customer:{customer}", tenant="free"),
        "print": Affinity("gpu", rate=Rate("9/m", "api"), exclusive="mine:{customer}"),
        "fetch": Affinity("pdf", rate=Rate("9/m", "api")),
        "train": Affinity("gpu", exclusive=Exclusive(lambda args, kwargs: "made")),
        "read": Affinity("gpu", exclusive=Exclusive(made_key)),
        "write": Affinity("pdf", exclusive=Exclusive(made_key)),
        "mail": Affinity("pdf"),
        "greet": Affinity("gpu", tenant="{customer}"),
        "thank": Affinity("gpu", tenant="free"),
        "anywhere": Affinity(exclusive="customer"),
        "by_name": Affinity(exclusive="named:{customer}"),
        "by_route": Affinity(exclusive="named:{customer}"),
        "routed": Affinity("gpu", exclusive="named:{customer}"),
        "single": Affinity("pdf", merge=Merge("{customer}", keep="last")),
    }.items():
        app.task(name_of, name=f"shop.{name}", affinity=affinity, shared=False)
    return app


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("draw", {}, "got: 'customer:[*]' of type 'gpu' in cohort 'ml' .task shop.draw. and of type 'pdf' in cohort"),
        ("render", {}, "exclusive= must have keys of one cohort"),
        ("fetch", {}, "rate= .*'rate:api' of type 'pdf'"),
        ("write", {}, "exclusive= .*'made_key..' of type 'pdf'"),
        ("greet", {}, "tenant= must have keys with a quota of one cohort.*'tenant:[*]'"),
        ("mail", {}, "tenant= .*'tenant:[*]' of type 'pdf'"),
        ("print", {"affinity": "pdf", "rate": False}, "'mine:[*]' of type 'pdf' in cohort 'default' .task shop.print."),
        ("by_name", {}, "'named:[*]' of type 'gpu' .*shop.by_name. and of type 'pdf' .*shop.routed"),
        ("by_route", {}, "'named:[*]' of type 'gpu' .*shop.by_route. and of type 'pdf' .*shop.routed"),
        ("routed", {}, "'named:[*]' of type 'pdf' .*shop.routed. and of type 'gpu'"),
        ("train", {"exclusive": "mine:*"}, None),
        ("train", {"affinity": "pdf"}, "'app_with_keys.<locals>.<lambda>"),
        ("single", {"exclusive": "mine:*"}, "'mine:[*]' of type 'pdf' .*shop.single. and of type 'gpu'"),
    ],
)  # fmt: skip
def test_publish_refuses_a_key_used_in_two_cohorts(app_with_keys, redis_client, task, options, message):
    if message is None:
        app_with_keys.tasks[f"shop.{task}"].apply_async(("x",), **options)
        return
    with pytest.raises(OptionError, match=message):
        app_with_keys.tasks[f"shop.{task}"].apply_async(("x",), **options)
    with pytest.raises(OptionError, match=message):
        publish_many(app_with_keys.tasks[f"shop.{task}"], [("x",)], **options)
    assert not redis_client.keys("*job:*")


def test_publish_accepts_merges_unlimited_tenants_and_one_cohorts_keys(app_with_keys):
    for task, options in (
        ("train", {}),
        ("thank", {}),
        ("render", {"exclusive": False}),
        ("anywhere", {"affinity": "pdf"}),
        ("anywhere", {"affinity": "gpu"}),
        ("single", {}),
        ("single", {"affinity": "gpu"}),
        ("mail", {"tenant": "acme"}),
    ):
        app_with_keys.tasks[f"shop.{task}"].apply_async(("x",), **options)


def test_key_check_includes_tasks_registered_later(app_with_keys):
    app_with_keys.tasks["shop.train"].delay("x")
    app_with_keys.task(name_of, name="shop.later", affinity=Affinity("pdf", exclusive="mine:{customer}"), shared=False)
    with pytest.raises(OptionError, match=r"task shop\.later"):
        app_with_keys.tasks["shop.print"].apply_async(("x",), rate=False)


def test_unreachable_cohort_does_not_affect_others(make_app, redis_client):
    with EmbeddedServer() as server:
        app = make_app({"ml": Cohort(["gpu*"]), "eu": Cohort(["eu.*"], url=server.url)})
        send(app, "eu.pdf")
        server.kill()
        with pytest.raises(OperationalError):
            send(app, "eu.pdf")
        send(app, "pdf")
        call = send(app, "gpu")
        app.control.revoke(call.id)
        assert pending(redis_client, "default", "pdf") == 1
        assert pending(redis_client, "ml", "gpu") == 0
        server.start()
        send(app, "eu.pdf")


def test_publish_is_retried_while_its_cohort_is_down(make_app, redis_client):
    with EmbeddedServer() as server:
        app = make_app({"eu": Cohort(["eu.*"], url=server.url)})
        app.conf.task_publish_retry = True
        app.conf.task_publish_retry_policy = {"max_retries": 100, "interval_start": 0.1, "interval_max": 0.1}
        send(app, "pdf")
        server.kill()
        back = threading.Timer(0.5, server.start)
        back.start()
        send(app, "eu.pdf")
        back.join()
        with redis.Redis.from_url(server.url) as client:
            assert pending(client, "eu", "eu.pdf") == 1


def test_publish_to_a_down_cohort_obeys_the_retry_policy(make_app, redis_client, monkeypatch):
    app = make_app({"eu": Cohort(["eu.*"], url=f"redis://127.0.0.1:{free_port()}")})
    app.conf.task_publish_retry = True
    app.conf.task_publish_retry_policy = {"max_retries": 3, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    send(app, "pdf")
    attempts, connect = [], Transport.establish_connection
    monkeypatch.setattr(
        Transport, "establish_connection", lambda transport: attempts.append(transport.client) or connect(transport)
    )
    with pytest.raises(OperationalError):
        send(app, "eu.pdf")
    assert len(attempts) == 2 + 4, "two of them declare the queue"
    task = app.task(name_of, name="shop.print", affinity="eu.pdf", shared=False)
    with pytest.raises(PublishError):
        publish_many(task, [("a",), ("b",)])
    assert len(attempts) < 2 + 4 + 2 * 4


def test_process_with_a_different_map_is_refused(make_app, redis_client):
    send(make_app(ON_ONE_SERVER), "pdf")
    send(make_app({**ON_ONE_SERVER}), "gpu")
    accepted = r"affinity_cohorts must be the map of the fleet, 'eu=eu.\* ml=gpu\*' \(revision 1\), got: "
    with pytest.raises(SettingError, match=accepted + r"'ml=gpu\*'"):
        send(make_app({"ml": Cohort(["gpu*"])}), "pdf")
    with pytest.raises(SettingError, match=accepted + "'no cohorts'"):
        send(make_app(), "pdf")
    assert redis_client.get(Keys().key("schema")) == b"3 1 eu=eu.* ml=gpu*"


def test_fleet_refuses_new_cohorts_until_the_map_is_adopted(make_app, redis_client):
    send(make_app(), "pdf")
    app = make_app(ON_ONE_SERVER)
    with pytest.raises(SettingError, match=r"'no cohorts' \(revision 0\), got: 'eu=eu.\* ml=gpu\*'"):
        send(app, "gpu")
    assert server_info.adopt_cohorts(redis_client, Keys(), "eu=eu.* ml=gpu*") == 1
    send(app, "gpu")
    assert server_info.adopt_cohorts(redis_client, Keys(), "") == 2
    send(make_app(), "pdf")
    with pytest.raises(SettingError, match=r"'no cohorts' \(revision 2\)"):
        send(make_app(ON_ONE_SERVER), "gpu")


def test_app_without_cohorts_uses_only_the_default_keys(make_app, valkey, redis_client):
    app = make_app()
    with scheduler_of(app) as scheduler, app.connection_or_acquire() as connection:
        connect_app(connection)
        channel = channel_of(connection, app.conf.broker_transport)
        assert channel.routes is None
        assert channel.scheduler_for("gpu") is channel.scheduler
        assert scheduler.keys.cohort == "default"
    assert redis_client.get(Keys().key("schema")) == b"3"


@pytest.mark.skipif(not since.PROVIDERS, reason="kombu before 5.6.1 knows none")
def test_cohort_url_can_have_its_own_credential_provider(make_app, other, other_client, monkeypatch, tmp_path):
    (tmp_path / "login").write_text("of-eu secret")
    monkeypatch.setenv("LOGIN", str(tmp_path / "login"))
    all_rights = {"enabled": True, "passwords": ["+secret"], "keys": "*", "channels": "*", "commands": ["+@all"]}
    other_client.acl_setuser("of-eu", **all_rights)
    url = f"{other.url}?credential_provider=tests.support.apps.logins.Plain"
    app = make_app({"eu": Cohort(["eu.*"], url=url)})
    send(app, "eu.pdf")
    with app.connection_for_write() as connection:
        connect_app(connection)
        channel = channel_of(connection, app.conf.broker_transport)
        assert channel.scheduler_of("eu").client.execute_command("ACL", "WHOAMI") == b"of-eu"
        assert channel.scheduler_of_its_own("eu").client.execute_command("ACL", "WHOAMI") == b"of-eu"
        assert channel.scheduler.client.execute_command("ACL", "WHOAMI") == b"default"
    other_client.acl_deluser("of-eu")
