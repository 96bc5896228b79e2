"""Results on a cluster: Celery's backend for Redis, on the node that has its keys, whichever that is by now."""

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

#: Longest wait, s, for results.
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
def test_a_url_of_a_cluster_needs_no_other_setting(kind):
    assert by_url(f"{kind}-cluster://one;{kind}-cluster://two") == (
        ClusterBackend,
        f"{kind}-cluster://one;{kind}-cluster://two",
    )


def test_all_keys_are_on_one_node(cluster, app):
    backend = app.backend
    for number in range(20):
        backend.store_result(f"task-{number}", number, states.SUCCESS)
    backend.set_chord_size("group", 2)
    backend.add_to_chord("group", None)
    owner = cluster.owner_of(backend.tag)
    assert len(owner.ask("KEYS", "*")) == 22
    assert {key_slot(key.encode()) for key in owner.ask("KEYS", "*")} == {key_slot(b"celery-result")}


def test_a_prefix_makes_another_tag(new_app, cluster):
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


def test_a_subscription_that_is_collected_while_its_pool_makes_a_connection_goes_back(app):
    """As after a reconnect. In redis-py before 6.2, a pool waits for itself then."""
    pool = app.backend.client.connection_pool
    subscription = app.backend.client.pubsub()
    subscription.subscribe("x")
    with pool._lock:
        assert pool._lock.acquire(blocking=False), "its own thread is let in"
        pool._lock.release()
        subscription.close()


def waits(app, *ids):
    """Begin to wait for results. Return a function that waits for the end of that."""
    results, got = [app.AsyncResult(each) for each in ids], []
    thread = threading.Thread(target=lambda: got.extend(each.get(timeout=WAIT_S) for each in results), daemon=True)
    thread.start()
    wait_until(lambda: len(app.backend.result_consumer.subscribed_to) == 1, 10, "it waits")

    def end():
        thread.join(WAIT_S)
        return got

    return end


def test_results_that_are_awaited_come_after_the_primary_was_killed(cluster, app, new_app):
    """The worker stores the first result while there is no primary, the second one later."""
    end = waits(app, "one", "two")
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


def test_an_end_that_nobody_told_of_is_found(cluster, app):
    """As a node does that has lost the other ones, and has the subscription."""
    end = waits(app, "silent")
    meta = app.backend._get_result_meta("found", states.SUCCESS, None, None)
    app.backend.client.set(app.backend.get_key_for_task("silent"), app.backend.encode({**meta, "task_id": "silent"}))
    assert end() == ["found"]


def test_what_counts_is_not_counted_twice(app, monkeypatch):
    """A lost reply may be one of a command that was carried out; a refusal for a slot that has moved is none."""
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


def test_a_cluster_that_is_down_is_an_error_in_the_time_of_the_policy(new_app, caplog):
    options = {"retry_policy": {"max_retries": 2, "interval_start": 0, "interval_step": 0}}
    backend = new_app(f"redis-cluster://{HOST}:{free_port()}", result_backend_transport_options=options).backend
    with pytest.raises(redis.ConnectionError, match="no node of the cluster says who has"):
        backend.store_result("task", 1, states.SUCCESS)
    assert len(caplog.records) == 2  # the transaction within is not repeated for itself


def test_a_database_is_refused_and_no_password_is_shown(new_app):
    with pytest.raises(ImproperlyConfigured, match=r"no database, or 0, got: 'redis-cluster://:\*\*@one:6379/3'"):
        assert Celery("results", backend="redis-cluster://:secret@one:6379/3", set_as_current=False).backend
    app = new_app("redis-cluster://:secret@one:1;redis-cluster://:secret@two:2")
    assert "secret" not in app.backend.as_uri()


def test_the_login_of_the_url_is_for_every_node(cluster, new_app):
    for node in cluster.alive:
        node.ask("ACL", "SETUSER", "somebody", "on", ">secret", "~*", "&*", "+@all")
    try:
        url = cluster.url_of(cluster.alive[:1]).replace("://", "://somebody:secret@")
        assert new_app(url).backend.client.acl_whoami() in ("somebody", b"somebody")
    finally:
        for node in cluster.alive:
            node.ask("ACL", "DELUSER", "somebody")


@pytest.mark.slow
@needs_tls
def test_tls_leads_to_the_owner_and_certificates_are_verified(tmp_path, new_app):
    make(tmp_path)
    with TLSCluster(directory=tmp_path, executable=WITH_TLS, primaries=1) as cluster:
        url = f"rediss-cluster://{HOST}:{cluster.nodes[1].tls_port}"
        backend = new_app(f"{url}?ssl_ca_certs={tmp_path / 'ca.pem'}").backend
        backend.store_result("task", 1, states.SUCCESS)
        assert backend.get_result("task") == 1
        options = {"retry_policy": {"max_retries": 0}}
        with pytest.raises(redis.ConnectionError, match="certificate"):
            new_app(url, result_backend_transport_options=options).backend.get_result("task")
