"""Every form of Redis URL that Celery accepts works with this transport, and no password is shown."""

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
    made = Connection(url, transport=OURS, **options)
    assert isinstance(made.transport, Transport)
    return made


def test_redis_url_is_parsed_and_hides_its_password():
    connected = connection("redis://user:s%40cret@example.org:6380/3")
    assert (connected.hostname, connected.port, connected.virtual_host) == ("example.org", 6380, "3")
    assert (connected.userid, connected.password) == ("user", "s@cret")
    assert connected.as_uri() == "redis://user:**@example.org:6380/3"
    assert connected.as_uri(include_password=True) == "redis://user:s%40cret@example.org:6380/3"


def test_tls_verifies_certificates_unless_disabled_in_the_url(subtests):
    verified, authority = {"ssl_cert_reqs": ssl.CERT_REQUIRED}, {"ssl_ca_certs": "/etc/ca.pem"}
    for url, options, expected in [
        ("rediss://example.org", {}, verified),
        ("rediss://example.org?ssl_cert_reqs=none", {}, {"ssl_cert_reqs": ssl.CERT_NONE}),
        ("rediss://example.org?ssl_ca_certs=/etc/ca.pem", {}, verified | authority),
        ("redis://example.org?ssl_ca_certs=/etc/ca.pem", {}, verified | authority),  # like on stock Celery
        ("rediss://example.org", {"ssl": authority}, verified | authority),
    ]:
        with subtests.test(f"{url} {options}"):
            assert connection(url, **options).ssl == expected


def test_sentinel_url_selects_the_sentinel_channel():
    connected = connection(
        "sentinel://:secret@one:26379/0;sentinel://two:26379/0", transport_options={"master_name": "m"}
    )
    assert connected.transport.Channel is SentinelChannel
    assert "secret" not in connected.as_uri()


def test_clone_equals_its_connection():
    for url in ("redis://:secret@example.org:6380/3", "rediss://example.org:6379/1", "sentinel://example.org:26379/0"):
        connected = connection(url)
        clone = connected.clone()
        assert clone.as_uri(include_password=True) == connected.as_uri(include_password=True)
        assert clone.ssl == connected.ssl
        assert type(clone.transport) is Transport
        assert clone.transport.Channel is connected.transport.Channel


def test_failover_keeps_the_transport():
    connected = connection("redis://one:1111/1;rediss://two:2222/2")
    connected.switch("rediss://two:2222/2")
    assert isinstance(connected.transport, Transport)
    assert connected.as_uri() == "rediss://two:2222/2"
    assert connected.ssl == {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    connected.switch("redis://one:1111/1")
    assert isinstance(connected.transport, Transport)
    assert connected.as_uri() == "redis://one:1111/1"
    assert not connected.ssl


def test_dead_first_server_is_skipped(valkey):
    with EmbeddedServer() as dead:
        pass
    connected = connection(f"{dead.url};{valkey.url}", connect_timeout=1)
    with connected.ensure_connection(max_retries=3, interval_start=0, interval_step=0) as reached:
        assert reached.port == valkey.port
        assert isinstance(reached.transport, Transport)


def test_unix_socket_url_connects(tmp_path):
    path = tmp_path / "valkey.sock"
    with (
        EmbeddedServer(options=("--unixsocket", str(path))),
        connection(f"socket://{path}?virtual_host=1") as connected,
    ):
        assert connected.default_channel.client.ping()
        assert connected.default_channel._size("pdf") == 0


def test_connection_info_contains_no_password():
    shown = repr(connection("redis://:secret@one/0;redis://:hidden@two/0").info() | {"password": None})
    assert "secret" not in shown
    assert "hidden" not in shown


def test_read_and_write_urls_can_differ(valkey):
    app = Celery("split")
    app.conf.update(
        broker_transport=OURS, broker_read_url=f"{valkey.url[:-1]}1", broker_write_url=f"{valkey.url[:-1]}2"
    )
    with app.connection_for_read() as read, app.connection_for_write() as write:
        assert isinstance(read.transport, Transport)
        assert isinstance(write.transport, Transport)
        assert (read.virtual_host, write.virtual_host) == ("1", "2")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("amqp://guest:secret@localhost//", ["redis://"]),
        (
            "redis-cluster://:secret@one/1",
            ["must have no database, or 0, got: 'redis-cluster://:**@one/1'", "namespace"],
        ),
    ],
)
def test_refused_url_is_shown_without_its_password(url, words):
    with pytest.raises(TransportError) as refusal:
        urls.parse_broker_url(url)
    assert [word for word in words if word not in str(refusal.value)] == []
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
def test_url_provider_logs_in_every_connection(url, monkeypatch, tmp_path):
    monkeypatch.setenv("LOGIN", str(tmp_path / "login"))
    for connected in (connection(url), connection(url).clone()):
        channel = object.__new__(connected.transport.Channel)
        channel.connection, channel.master_name = connected.transport, "main"
        for asynchronous in (False, True):
            params = channel._connparams(asynchronous)
            assert type(params["credential_provider"]).__name__ == "Plain"
            assert (params.get("username"), params.get("password")) == (None, None)


@pytest.mark.parametrize("scheme", ["redis://localhost", "socket:///tmp/redis.sock"])
@pytest.mark.parametrize("path", ["nowhere.Provider", "tests.support.apps.logins.Absent", "celery.Celery", "os.name"])
def test_invalid_provider_path_is_refused(scheme, path):
    with pytest.raises(TransportError, match=f"credential_provider in broker_url must be the path .* got: '{path}'"):
        connection(f"{scheme}?credential_provider={path}")


def test_unknown_url_parameter_is_refused():
    accepted = r"takes credential_provider= and ssl_...= after the '\?', got: password_of="
    with pytest.raises(TransportError, match=accepted):
        connection("redis://localhost?password_of=me")


def test_kombu_without_providers_refuses_a_provider_url(monkeypatch):
    before = Connection._init_params

    def of_an_old_kombu(self, **params):
        before(self, **params)
        del self.credential_provider

    if since.PROVIDERS:
        monkeypatch.setattr(Connection, "_init_params", of_an_old_kombu)
    assert connection("redis://localhost").hostname == "localhost"
    with pytest.raises(TransportError, match=r"needs kombu 5\.6\.1 or later, got: kombu \d"):
        connection(f"redis://localhost?credential_provider={PLAIN}")


@pytest.mark.parametrize(("scheme", "redis_scheme"), [("valkey", "redis"), ("valkeys", "rediss")])
def test_valkey_scheme_equals_the_redis_scheme(scheme, redis_scheme):
    connected = connection(f"{scheme}://user:secret@example.org:6380/3")
    assert connected.as_uri() == f"{redis_scheme}://user:**@example.org:6380/3"
    assert bool(connected.ssl) == (redis_scheme == "rediss")


CLUSTER = "redis+cluster://user:secret@one:7001;redis+cluster://two:7002"


@pytest.mark.parametrize("scheme", ["redis-cluster", "rediss-cluster"])
def test_cluster_urls_are_start_nodes_with_one_login(scheme):
    connected = connection(f"{scheme}://user:secret@one:7001;{scheme}://two/0", connect_timeout=1)
    assert connected.transport.Channel is ClusterChannel
    for each in (connected, connected.clone()):
        channel = unopened(each)
        params = channel._connparams()
        assert params["cluster"].nodes == [("one", 7001), ("two", 6379)]
        assert (params["username"], params["password"]) == ("user", "secret")
        assert issubclass(params["connection_class"], redis.SSLConnection) == (scheme == "rediss-cluster")
    assert connected.as_uri() == f"{scheme}://user:**@one:7001//"
    assert "secret" not in repr(connected.info() | {"password": None})


def unopened(connected):
    channel = object.__new__(connected.transport.Channel)
    channel.connection = connected.transport
    channel.keys = channel.keys_of(connected.transport_options)
    return channel


@needs_providers
def test_provider_logs_in_on_every_cluster_node(monkeypatch, tmp_path):
    monkeypatch.setenv("LOGIN", str(tmp_path / "login"))
    connected = connection(f"rediss-cluster://user:secret@one/0?credential_provider={PLAIN}")
    params = unopened(connected)._connparams()
    assert type(params["credential_provider"]).__name__ == "Plain"
    assert (params.get("username"), params.get("password")) == (None, None)


def test_cluster_nodes_are_cached_across_start_nodes():
    connected = connection("redis-cluster://one:7001;redis-cluster://two:7002")
    before = unopened(connected)._connparams()["cluster"]
    connected.switch("redis-cluster://two:7002")
    assert unopened(connected)._connparams(asynchronous=True)["cluster"] is before
    other = connection("redis-cluster://one:7001;redis-cluster://two:7002", transport_options={"namespace": "other"})
    assert unopened(other)._connparams()["cluster"].slot != before.slot


@pytest.mark.parametrize("url", [CLUSTER, CLUSTER.split(";"), CLUSTER.replace("redis+", "valkey+")])
def test_plus_scheme_of_a_cluster_url_selects_this_transport(url):
    app = app_for(url)
    with app.connection_for_read() as connected:
        assert connected.transport.Channel is ClusterChannel
        assert connected.as_uri() == "redis-cluster://user:**@one:7001//"
        assert len(connected.alt) == 2


def test_plus_scheme_of_other_apps_stays_with_kombu():
    app = Celery("stock", broker="redis+cluster://one", set_as_current=False)
    assert app.connection_for_write().transport_cls == "redis"


def test_switch_to_another_cluster_node_keeps_the_login():
    connected = connection("redis-cluster://user:secret@one:7001;redis-cluster://two:7002")
    for each in (connected, connected.clone()):
        assert each.transport  # creates the transport, which handles the switch
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
def test_bug_report_shows_urls_without_passwords(urls):
    app = app_for(urls[0], result_backend=urls[1])
    app.conf.affinity_cohorts = {"eu": Cohort(["eu.*"], url="redis://:secret@eu.example")}
    report = app.bugreport()
    assert urls[0].partition(":")[0] + "://" in report
    assert "eu.example" in report
    assert "celery_affinity" in report
    assert "secret" not in report


def test_url_without_kombu_support_needs_the_transport():
    for url in ("redis-cluster://one", "valkey://one"):
        with pytest.raises(TransportError, match="needs the transport of this package"):
            Connection(url).connect()
