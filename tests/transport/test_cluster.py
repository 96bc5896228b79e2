"""A channel on a cluster finds the node that currently owns all keys."""

import secrets
from contextlib import closing, contextmanager

import pytest
import redis
from kombu import Connection, Exchange, Queue
from kombu.exceptions import OperationalError
from redis.crc import key_slot

from celery_affinity.broker.client import take_connection
from celery_affinity.broker.cluster import ClusterNode, ClusterNodes
from celery_affinity.embedded.server import HOST, free_port
from celery_affinity.liveness import redis_client as wire
from celery_affinity.liveness.guard import address_of
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys

from ..support.apps import app_for
from ..support.certificates import make
from ..support.processes import wait_until
from ..support.servers import WITH_TLS, needs_tls
from ..support.tls_cluster import TLSCluster

KEYS = Keys(in_cluster=True)
SLOT = key_slot(KEYS.base.encode())


def a_job(type_):
    return NewJob(secrets.token_urlsafe(6), type_, "message", task_id=secrets.token_urlsafe(6))


@contextmanager
def channel_on(url):
    options = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
    with Connection(url, transport="celery_affinity:Transport", transport_options=options) as connection:
        yield connection.default_channel


@pytest.fixture
def channel(cluster):
    with channel_on(cluster.url) as channel:
        yield channel


def test_kombus_keys_are_on_the_same_node(cluster, channel):
    queue = Queue("list", Exchange("exchange"), routing_key="list", channel=channel)
    queue.declare()
    queue.exchange(channel).publish(queue.exchange(channel).Message("text"), routing_key="list")
    assert channel._size("list") == 1
    assert channel.queue_declare("list", passive=True).message_count == 1
    assert queue.get().payload == "text"
    keys = {key.decode() for node in cluster.alive if node.is_primary for key in keys_on(node)}
    assert keys == set(keys_on(cluster.owner, decode=True))
    assert f"{KEYS.of_kombu}_kombu.binding.exchange" in keys
    assert {key for key in keys if not key.startswith(KEYS.base)} == set()


def keys_on(node, decode=False):
    with redis.Redis(HOST, node.port, decode_responses=decode) as client:
        return client.keys()


def test_channel_on_another_node_finds_the_owner(cluster):
    others = [node for node in cluster.alive if node is not cluster.owner]
    with channel_on(cluster.url_of(others[:1])) as channel:
        assert channel.scheduler.tick() is not None
        assert take_connection(channel.client.connection_pool).port == cluster.owner.port


def test_each_cohort_is_on_the_owner_of_its_slot(cluster):
    app = app_for(cluster.url, affinity_cohorts={"eu": {"types": ["eu.*"]}})
    home, away = cluster.owner, cluster.owner_of(Keys(cohort="eu").base)
    assert home is not away
    try:
        calls = [app.send_task("proj.work", queue=type_) for type_ in ("pdf", "eu.pdf", "eu.pdf")]
        assert [_pending(home, "default", "pdf"), _pending(away, "eu", "eu.pdf")] == [1, 2]
        assert {key.partition("}")[0] for key in keys_on(away, decode=True)} == {"{affinity:eu"}
        app.control.revoke([each.id for each in calls])
        assert [_pending(home, "default", "pdf"), _pending(away, "eu", "eu.pdf")] == [0, 0]
    finally:
        app.close()


def _pending(node, cohort, type_):
    with redis.Redis(HOST, node.port) as client:
        return Reader(client, Keys(cohort=cohort)).pending(type_)


def test_unreachable_start_nodes_are_skipped(cluster):
    with channel_on(f"redis-cluster://{HOST}:{free_port()};{cluster.url_of([cluster.owner])}") as channel:
        assert channel.scheduler.tick() is not None


def test_single_server_url_error_names_the_cluster_scheme(cluster):
    with (
        channel_on(f"redis://{HOST}:{cluster.other.port}") as channel,
        pytest.raises(redis.ConnectionError, match=r"is a node of a cluster, .* write redis-cluster://"),
    ):
        channel.scheduler.tick()


def test_unreachable_cluster_is_a_lost_connection(cluster):
    port = free_port()
    with (
        pytest.raises(OperationalError, match=f"no node of the cluster says .*: {HOST}:{port}: .*refused"),
        channel_on(f"redis-cluster://{HOST}:{port}"),
    ):
        pass


def test_command_refused_by_a_former_owner_reaches_the_new_one(cluster, channel):
    scheduler = channel.scheduler
    scheduler.tick()
    before = cluster.owner
    cluster.hand_over()
    scheduler.publish(a_job("pdf"))
    assert scheduler.reader.pending("pdf") == 1
    wait_until(lambda: cluster.owner is not before, 10, "the former owner has the new slot map")


def test_migrated_slot_keeps_jobs_and_reloads_functions(cluster, channel):
    channel.scheduler.publish(a_job("pdf"))
    target = cluster.other
    cluster.migrate(target)
    channel.scheduler.publish(a_job("pdf"))
    assert channel.scheduler.reader.pending("pdf") == 2


def test_key_by_key_migration_starts_no_repair_and_is_explained(cluster, channel, monkeypatch, caplog):
    scheduler, source, target = channel.scheduler, cluster.owner, cluster.other
    scheduler.publish(a_job("pdf"))

    def repair(*_, **__):
        raise AssertionError("the data are sound")

    monkeypatch.setattr(scheduler, "repair", repair)
    target.ask("CLUSTER", "SETSLOT", SLOT, "IMPORTING", source.id)
    source.ask("CLUSTER", "SETSLOT", SLOT, "MIGRATING", target.id)
    try:
        for call in (
            scheduler.tick,
            lambda: scheduler.publish(a_job("pdf")),
            lambda: scheduler.reader.pending("excel"),
        ):
            with pytest.raises(redis.ConnectionError, match=r"moved key by key.*CLUSTER MIGRATESLOTS.*check --repair"):
                call()
    finally:
        for node in (source, target):
            node.ask("CLUSTER", "SETSLOT", SLOT, "STABLE")
    assert caplog.records == []


def test_guard_finds_the_owner_and_remembers_all_nodes(cluster, channel):
    with channel_on(cluster.url_of([cluster.owner])) as channel:
        address = address_of(channel.pool)
    address["nodes"] = [*address["nodes"][:1], (HOST, free_port())]
    for _ in range(2):
        with closing(wire.GuardConnection(address, 5)) as connection:
            assert connection.call("SET", f"{KEYS.base}x", 1) == b"OK"
            assert connection._socket.getpeername()[1] == cluster.owner.port
        assert {port for _, port in address["nodes"]} >= {node.port for node in cluster.alive}
        cluster.hand_over()
        wait_until(lambda: all(knows(node, cluster.owner) for node in cluster.alive), 10, "all nodes have the new map")


def knows(node, owner):
    ranges = node.ask("CLUSTER", "SLOTS")
    return any(first <= SLOT <= last and head[1] == owner.port for first, last, head, *_ in ranges)


def test_unreachable_cluster_is_a_lost_connection_to_a_guard():
    address = dict.fromkeys(("path", "tls", "username", "password", "db", "client_name", "host"))
    with pytest.raises(ConnectionError, match="no node of the cluster knows who owns slot 7"):
        wire.GuardConnection({**address, "port": 0, "nodes": [(HOST, free_port())], "slot": 7}, 1)


def test_urls_login_applies_to_every_node(cluster):
    nodes = [node for node in cluster.alive if node is not cluster.owner]
    with cluster.user() as login, channel_on(cluster.url_of(nodes[:1]).replace("://", f"://{login}@")) as channel:
        assert channel.client.acl_whoami() in ("somebody", b"somebody")
        assert channel.scheduler.client.acl_whoami() in ("somebody", b"somebody")
        with closing(wire.GuardConnection(address_of(channel.pool), 5)) as guard:
            assert guard.call("ACL", "WHOAMI") == b"somebody"


@needs_tls
def test_tls_cluster_uses_the_owners_tls_port(tmp_path):
    make(tmp_path)
    with TLSCluster(directory=tmp_path, executable=WITH_TLS, primaries=1) as cluster:
        primary, replica = cluster.nodes
        url = f"rediss-cluster://{HOST}:{replica.tls_port}?ssl_ca_certs={tmp_path / 'ca.pem'}"
        with channel_on(url) as channel:
            assert channel.scheduler.tick() is not None
            with closing(wire.GuardConnection(address_of(channel.pool), 5)) as guard:
                assert guard._socket.getpeername()[1] == primary.tls_port
            replica.ask("CLUSTER", "FAILOVER")
            wait_until(lambda: replica.is_primary and not primary.is_primary, 20, "it takes over")
            channel.scheduler.publish(a_job("pdf"))
            assert take_connection(channel.scheduler.client.connection_pool).port == replica.tls_port


ONE = ClusterNode("one", 1)


@pytest.mark.parametrize("reply", [None, [], [[0, 3]], b"text", [["a", "b", ["c", "d"]]], [[0, 3, [b"x", 1]]], [7]])
def test_invalid_slot_map_is_a_lost_connection(reply):
    cluster = ClusterNodes([ONE], 5)
    with pytest.raises(redis.ConnectionError):
        cluster.learn(ONE, reply)
    assert cluster.owner is None
    assert cluster.nodes == [ONE]


@pytest.mark.parametrize("host", [None, b"", "one"])
def test_node_without_a_host_keeps_the_queried_host(host):
    cluster = ClusterNodes([ONE], 5)
    cluster.learn(ONE, [[0, 9, [host, 7, b"id", []], [b"two", 8, b"id"]]])
    assert cluster.owner == ClusterNode("one", 7)
    assert cluster.nodes == [ClusterNode("one", 7), ClusterNode("two", 8), ONE]
    cluster.doubt(ClusterNode("one", 7))
    assert cluster.owner is None
    assert cluster.nodes == [ClusterNode("two", 8), ClusterNode("one", 7), ONE]
