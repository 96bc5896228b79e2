"""Broker URLs: every form that Celery takes for Redis reaches this transport, and no password is shown."""

import ssl

import pytest
import redis
from celery import Celery
from kombu import Connection

from celery_affinity import Cohort, TransportError
from celery_affinity.embedded import EmbeddedServer
from celery_affinity.transport import urls
from celery_affinity.transport.channel import SentinelChannel
from celery_affinity.transport.transport import ClusterChannel, Transport

from ..support import since
from ..support.apps import app_for

OURS = "celery_affinity:Transport"


def connection(url, **options):
    found = Connection(url, transport=OURS, **options)
    assert isinstance(found.transport, Transport)
    return found


def test_redis():
    found = connection("redis://user:s%40cret@example.org:6380/3")
    assert (found.hostname, found.port, found.userid, found.password, found.virtual_host) == (
        "example.org",
        6380,
        "user",
        "s@cret",
        "3",
    )
    assert found.as_uri() == "redis://user:**@example.org:6380/3"
    assert found.as_uri(include_password=True) == "redis://user:s%40cret@example.org:6380/3"


def test_rediss_verifies_the_servers_certificate_unless_the_url_says_otherwise():
    assert connection("rediss://example.org").ssl == {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    unverified = connection("rediss://example.org?ssl_cert_reqs=none").ssl
    assert unverified == {"ssl_cert_reqs": ssl.CERT_NONE}
    authority = connection("rediss://example.org?ssl_ca_certs=/etc/ca.pem").ssl
    assert authority == {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/etc/ca.pem"}
    given = connection("rediss://example.org", ssl={"ssl_ca_certs": "/etc/ca.pem"}).ssl
    assert given == {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/etc/ca.pem"}


def test_sentinel():
    found = connection("sentinel://:secret@one:26379/0;sentinel://two:26379/0", transport_options={"master_name": "m"})
    assert found.transport.Channel is SentinelChannel
    assert "secret" not in found.as_uri()


def test_a_clone_is_the_same_connection():
    for url in ("redis://:secret@example.org:6380/3", "rediss://example.org:6379/1", "sentinel://example.org:26379/0"):
        found = connection(url)
        clone = found.clone()
        assert clone.as_uri(include_password=True) == found.as_uri(include_password=True)
        assert clone.ssl == found.ssl
        assert type(clone.transport) is Transport
        assert clone.transport.Channel is found.transport.Channel


def test_it_stays_itself_after_a_failover():
    found = connection("redis://one:1111/1;rediss://two:2222/2")
    found.switch("rediss://two:2222/2")
    assert isinstance(found.transport, Transport)
    assert found.as_uri() == "rediss://two:2222/2"
    assert found.ssl == {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    found.switch("redis://one:1111/1")
    assert isinstance(found.transport, Transport)
    assert (found.hostname, found.port, found.virtual_host, bool(found.ssl)) == ("one", 1111, "1", False)


def test_a_dead_first_server_is_passed_over(valkey):
    with EmbeddedServer() as dead:
        pass
    found = connection(f"{dead.url};{valkey.url}", connect_timeout=1)
    with found.ensure_connection(max_retries=3, interval_start=0, interval_step=0) as reached:
        assert reached.port == valkey.port
        assert isinstance(reached.transport, Transport)


def test_a_unix_socket(tmp_path):
    path = tmp_path / "valkey.sock"
    with EmbeddedServer(options=("--unixsocket", str(path))), connection(f"socket://{path}?virtual_host=1") as found:
        assert found.default_channel.client.ping()
        assert found.default_channel._size("pdf") == 0


def test_no_password_in_what_inspect_stats_shows():
    shown = repr(connection("redis://:secret@one/0;redis://:hidden@two/0").info() | {"password": None})
    assert "secret" not in shown
    assert "hidden" not in shown


def test_read_and_write_urls(valkey):
    app = Celery("split")
    app.conf.update(
        broker_transport=OURS, broker_read_url=f"{valkey.url[:-1]}1", broker_write_url=f"{valkey.url[:-1]}2"
    )
    with app.connection_for_read() as read, app.connection_for_write() as write:
        assert isinstance(read.transport, Transport)
        assert isinstance(write.transport, Transport)
        assert (read.virtual_host, write.virtual_host) == ("1", "2")


def test_another_scheme_is_refused_without_its_password():
    with pytest.raises(TransportError) as refusal:
        urls.parse_broker_url("amqp://guest:secret@localhost//")
    assert "redis://" in str(refusal.value)
    assert "secret" not in str(refusal.value)


PLAIN = "tests.support.apps.logins.Plain"

needs_providers = pytest.mark.skipif(not since.PROVIDERS, reason="kombu before 5.6.1 knows none")


@needs_providers
@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:secret@localhost/0?credential_provider={PLAIN}",
        f"rediss://localhost/0?credential_provider={PLAIN}",
        f"sentinel://localhost:26379/0?credential_provider={PLAIN}",
        f"socket:///tmp/redis.sock?credential_provider={PLAIN}",
    ],
)
def test_a_provider_in_the_url_logs_every_connection_in(url, monkeypatch, tmp_path):
    monkeypatch.setenv("LOGIN", str(tmp_path / "login"))
    for found in (connection(url), connection(url).clone()):
        channel = object.__new__(found.transport.Channel)
        channel.connection, channel.master_name = found.transport, "main"
        for asynchronous in (False, True):
            params = channel._connparams(asynchronous)
            assert type(params["credential_provider"]).__name__ == "Plain"
            assert (params.get("username"), params.get("password")) == (None, None)


@pytest.mark.parametrize("scheme", ["redis://localhost", "socket:///tmp/redis.sock"])
@pytest.mark.parametrize("path", ["nowhere.Provider", "tests.support.apps.logins.Absent", "celery.Celery", "os.name"])
def test_a_provider_that_is_none_is_refused_since_the_login_would_be_left_out(scheme, path):
    with pytest.raises(TransportError, match=f"credential_provider in broker_url must be the path .* got: '{path}'"):
        connection(f"{scheme}?credential_provider={path}")


def test_a_name_without_a_meaning_is_refused():
    with pytest.raises(
        TransportError, match=r"takes credential_provider= and ssl_...= after the '\?', got: password_of="
    ):
        connection("redis://localhost?password_of=me")


def test_options_of_tls_in_a_url_mean_tls_as_with_stock():
    assert connection("redis://localhost?ssl_ca_certs=/ca.pem").ssl == {
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
        "ssl_ca_certs": "/ca.pem",
    }


def test_a_kombu_that_knows_no_providers_is_not_used_without_a_login(monkeypatch):
    before = Connection._init_params

    def of_an_old_kombu(self, **params):
        before(self, **params)
        del self.credential_provider

    if since.PROVIDERS:
        monkeypatch.setattr(Connection, "_init_params", of_an_old_kombu)
    assert connection("redis://localhost").hostname == "localhost"
    with pytest.raises(TransportError, match=r"needs kombu 5\.6\.1 or later, got: kombu \d"):
        connection(f"redis://localhost?credential_provider={PLAIN}")


@pytest.mark.parametrize(("scheme", "meant"), [("valkey", "redis"), ("valkeys", "rediss")])
def test_valkey_is_another_word_for_redis(scheme, meant):
    found = connection(f"{scheme}://user:secret@example.org:6380/3")
    assert found.as_uri() == f"{meant}://user:**@example.org:6380/3"
    assert bool(found.ssl) == (meant == "rediss")


CLUSTER = "redis+cluster://user:secret@one:7001;redis+cluster://two:7002"


@pytest.mark.parametrize("scheme", ["redis-cluster", "rediss-cluster"])
def test_all_urls_of_a_cluster_are_its_start_nodes_and_one_of_them_has_the_login(scheme):
    found = connection(f"{scheme}://user:secret@one:7001;{scheme}://two/0", connect_timeout=1)
    assert found.transport.Channel is ClusterChannel
    for each in (found, found.clone()):
        channel = unopened(each)
        params = channel._connparams()
        assert params["cluster"].nodes == [("one", 7001), ("two", 6379)]
        assert (params["username"], params["password"]) == ("user", "secret")
        assert issubclass(params["connection_class"], redis.SSLConnection) == (scheme == "rediss-cluster")
    assert found.as_uri() == f"{scheme}://user:**@one:7001//"
    assert "secret" not in repr(found.info() | {"password": None})


def unopened(found):
    channel = object.__new__(found.transport.Channel)
    channel.connection = found.transport
    channel.keys = channel.keys_of(found.transport_options)
    return channel


@needs_providers
def test_a_provider_logs_in_at_every_node_of_a_cluster(monkeypatch, tmp_path):
    monkeypatch.setenv("LOGIN", str(tmp_path / "login"))
    found = connection(f"rediss-cluster://user:secret@one/0?credential_provider={PLAIN}")
    params = unopened(found)._connparams()
    assert type(params["credential_provider"]).__name__ == "Plain"
    assert (params.get("username"), params.get("password")) == (None, None)


def test_a_process_keeps_what_it_knows_of_a_cluster_whichever_node_its_connection_names():
    found = connection("redis-cluster://one:7001;redis-cluster://two:7002")
    before = unopened(found)._connparams()["cluster"]
    found.switch("redis-cluster://two:7002")
    assert unopened(found)._connparams(asynchronous=True)["cluster"] is before
    other = connection("redis-cluster://one:7001;redis-cluster://two:7002", transport_options={"namespace": "other"})
    assert unopened(other)._connparams()["cluster"].slot != before.slot


@pytest.mark.parametrize("url", [CLUSTER, CLUSTER.split(";"), CLUSTER.replace("redis+", "valkey+")])
def test_an_app_leaves_the_plus_of_a_clusters_url_to_this_transport(url):
    app = app_for(url)
    with app.connection_for_read() as found:
        assert found.transport.Channel is ClusterChannel
        assert found.as_uri() == "redis-cluster://user:**@one:7001//"
        assert len(found.alt) == 2


def test_a_plus_in_another_apps_url_stays_kombus():
    app = Celery("stock", broker="redis+cluster://one", set_as_current=False)
    assert app.connection_for_write().transport_cls == "redis"


def test_a_cluster_has_one_database():
    with pytest.raises(
        TransportError, match=r"must have no database, or 0, got: 'redis-cluster://:\*\*@one/1'"
    ) as refusal:
        urls.parse_broker_url("redis-cluster://:secret@one/1")
    assert "namespace" in str(refusal.value)


def test_a_switch_to_another_node_of_a_cluster_keeps_the_login_of_the_first():
    found = connection("redis-cluster://user:secret@one:7001;redis-cluster://two:7002")
    for each in (found, found.clone()):
        assert each.transport  # whose method is called
        each.switch("redis-cluster://two:7002")
        params = unopened(each)._connparams()
        assert (params["username"], params["password"]) == ("user", "secret")
        assert list(map(str, params["cluster"].nodes)) == ["one:7001", "two:7002"]


@pytest.mark.parametrize(
    "urls",
    [
        ("redis-cluster://:secret@127.0.0.1:1;redis-cluster://two", "redis-cluster://:secret@127.0.0.1:1"),
        ("valkey://u:secret@127.0.0.1:1/0", "valkey://u:secret@127.0.0.1:1/1"),
        ("valkeys://u:secret@127.0.0.1:1/0", "redis://u:secret@127.0.0.1:1/1"),
    ],
)
def test_a_report_of_an_app_shows_its_urls_without_the_passwords(urls):
    app = app_for(urls[0], result_backend=urls[1])
    app.conf.affinity_cohorts = {"eu": Cohort(["eu.*"], url="redis://:secret@eu.example")}
    report = app.bugreport()
    assert urls[0].partition(":")[0] + "://" in report
    assert "eu.example" in report
    assert "celery_affinity" in report
    assert "secret" not in report


def test_a_url_that_kombu_does_not_know_needs_the_transport():
    for url in ("redis-cluster://one", "valkey://one"):
        with pytest.raises(TransportError, match="needs the transport of this package"):
            Connection(url).connect()
