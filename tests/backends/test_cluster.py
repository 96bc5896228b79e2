"""Celery's Redis backend stores results on the cluster node that currently owns their keys."""

import threading

import pytest
import redis
from celery import Celery, states
from celery.app.backends import by_url
from celery.exceptions import ImproperlyConfigured
from redis.crc import key_slot

from celery_affinity.backends.cluster import ClusterBackend
from celery_affinity.broker.client import SlotMovedError
from celery_affinity.embedded.server import HOST, free_port

from ..support.certificates import make
from ..support.processes import wait_until
from ..support.servers import WITH_TLS, needs_tls
from ..support.tls_cluster import TLSCluster

# Celery calls it.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

#: Max seconds to wait for results.
WAIT_S = 30


@pytest.fixture
def new_app():
    made = []

    def new(url, **conf):
        made.append(Celery("results", backend=url, set_as_current=False, **conf))
        return made[-1]

    yield new
    for app in made:
        app.backend.result_consumer.stop()
        app.backend.client.connection_pool.disconnect()
        app.close()


@pytest.fixture
def app(cluster, new_app):
    return new_app(cluster.url)


@pytest.mark.parametrize("kind", ["redis", "rediss", "valkey", "valkeys"])
def test_cluster_url_selects_the_cluster_backend(kind):
    url = f"{kind}-cluster://one;{kind}-cluster://two"
    assert by_url(url) == (ClusterBackend, url)


def test_all_keys_share_one_slot_and_node(cluster, app):
    backend = app.backend
    for number in range(20):
        backend.store_result(f"task-{number}", number, states.SUCCESS)
    backend.set_chord_size("group", 2)
    backend.add_to_chord("group", None)
    owner = cluster.owner_of(backend.tag)
    assert len(owner.ask("KEYS", "*")) == 22
    assert {key_slot(key.encode()) for key in owner.ask("KEYS", "*")} == {key_slot(b"celery-result")}


def test_global_prefix_changes_the_hash_tag(new_app, cluster):
    app = new_app(cluster.url, result_backend_transport_options={"global_keyprefix": "shop"})
    assert app.backend.get_key_for_task("x") == b"{shop_celery-result}:celery-task-meta-x"
    assert app.backend.get_key_for_group("x", ".j") == b"{shop_celery-result}:celery-taskset-meta-x.j"


def test_results_are_compressed_expire_and_are_forgotten(cluster, new_app):
    backend = new_app(cluster.url, result_expires=60, result_compression="zlib").backend
    backend.store_result("task", "x" * 10_000, states.SUCCESS)
    key = backend.get_key_for_task("task")
    assert 0 < backend.client.ttl(key) <= 60
    if getattr(backend, "supports_result_compression", False):  # since Celery 5.7
        assert backend.client.strlen(key) < 1000
    assert backend.get_result("task") == "x" * 10_000
    backend.forget("task")
    assert backend.client.keys() == []


def test_collected_subscription_returns_while_its_pool_is_locked(app):
    """A reconnect causes this. In redis-py before 6.2, the pool would wait for itself."""
    pool = app.backend.client.connection_pool
    subscription = app.backend.client.pubsub()
    subscription.subscribe("x")
    with pool._lock:
        assert pool._lock.acquire(blocking=False), "its own thread is let in"
        pool._lock.release()
        subscription.close()


def start_waiting(app, *ids):
    """Start to wait for results; return a function that returns them all."""
    results, got = [app.AsyncResult(each) for each in ids], []
    thread = threading.Thread(target=lambda: got.extend(each.get(timeout=WAIT_S) for each in results), daemon=True)
    thread.start()
    wait_until(lambda: len(app.backend.result_consumer.subscribed_to) == 1, 10, "it waits")

    def end():
        thread.join(WAIT_S)
        return got

    return end


def test_awaited_results_arrive_after_the_primary_is_killed(cluster, app, new_app):
    """The worker stores the first result while there is no primary, the second one later."""
    end = start_waiting(app, "one", "two")
    worker = new_app(cluster.url).backend
    worker.store_result("before", 0, states.SUCCESS)
    owner = cluster.owner_of(worker.tag)
    heir = cluster.replica_of(owner)
    owner.kill()
    try:
        worker.store_result("one", 1, states.SUCCESS)
        assert heir.is_primary
        worker.store_result("two", 2, states.SUCCESS)
        assert end() == [1, 2]
        assert app.AsyncResult("before").get(timeout=5) == 0
    finally:
        cluster.revive(owner)


def test_awaited_result_arrives_without_a_notification(cluster, app):
    """A node that lost the other nodes and holds the subscription sends no notification."""
    end = start_waiting(app, "silent")
    meta = app.backend._get_result_meta("found", states.SUCCESS, None, None)
    app.backend.client.set(app.backend.get_key_for_task("silent"), app.backend.encode({**meta, "task_id": "silent"}))
    assert end() == ["found"]


def test_lost_reply_does_not_repeat_an_increment(app, monkeypatch):
    """A command whose reply is lost may have been executed; a command refused for a moved slot was not."""
    client, sent = app.backend.client, []
    errors = {"INCRBY": redis.ConnectionError("lost"), "GET": redis.ConnectionError("lost")}

    def execute(_, name, *args, **options):
        sent.append(name)
        if sent.count(name) == 1:
            raise errors[name]

    monkeypatch.setattr(redis.Redis, "execute_command", execute)
    client.get("x")
    with pytest.raises(redis.ConnectionError, match="lost"):
        client.incr("x")
    assert sent == ["GET", "GET", "INCRBY"]
    sent.clear()
    errors["INCRBY"] = SlotMovedError("moved")
    client.incr("x")
    assert sent == ["INCRBY", "INCRBY"]


def test_unreachable_cluster_raises_after_the_policys_retries(new_app, caplog):
    options = {"retry_policy": {"max_retries": 2, "interval_start": 0, "interval_step": 0}}
    backend = new_app(f"redis-cluster://{HOST}:{free_port()}", result_backend_transport_options=options).backend
    with pytest.raises(redis.ConnectionError, match="no node of the cluster says who has"):
        backend.store_result("task", 1, states.SUCCESS)
    assert len(caplog.records) == 2  # the inner transaction is not retried separately


def test_cluster_url_refuses_a_database_and_hides_passwords(new_app):
    with pytest.raises(ImproperlyConfigured, match=r"no database, or 0, got: 'redis-cluster://:\*\*@one:6379/3'"):
        assert Celery("results", backend="redis-cluster://:secret@one:6379/3", set_as_current=False).backend
    app = new_app("redis-cluster://:secret@one:1;redis-cluster://:secret@two:2")
    assert "secret" not in app.backend.as_uri()


def test_urls_login_applies_to_every_node(cluster, new_app):
    with cluster.user() as login:
        url = cluster.url_of(cluster.alive[:1]).replace("://", f"://{login}@")
        assert new_app(url).backend.client.acl_whoami() in ("somebody", b"somebody")


@pytest.mark.slow
@needs_tls
def test_tls_cluster_verifies_the_owners_certificate(tmp_path, new_app):
    make(tmp_path)
    with TLSCluster(directory=tmp_path, executable=WITH_TLS, primaries=1) as cluster:
        url = f"rediss-cluster://{HOST}:{cluster.nodes[1].tls_port}"
        backend = new_app(f"{url}?ssl_ca_certs={tmp_path / 'ca.pem'}").backend
        backend.store_result("task", 1, states.SUCCESS)
        assert backend.get_result("task") == 1
        options = {"retry_policy": {"max_retries": 0}}
        with pytest.raises(redis.ConnectionError, match="certificate"):
            new_app(url, result_backend_transport_options=options).backend.get_result("task")
