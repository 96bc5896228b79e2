"""Broker URLs: every form that Celery takes for Redis reaches this transport, and no password is shown."""

import ssl

import pytest
from celery import Celery
from kombu import Connection

from celery_affinity import TransportError
from celery_affinity.embedded import EmbeddedServer
from celery_affinity.transport import urls
from celery_affinity.transport.channel import SentinelChannel
from celery_affinity.transport.transport import Transport

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
        urls.parse("amqp://guest:secret@localhost//")
    assert "redis://" in str(refusal.value)
    assert "secret" not in str(refusal.value)


PLAIN = "tests.support.apps.logins.Plain"


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

    monkeypatch.setattr(Connection, "_init_params", of_an_old_kombu)
    assert connection("redis://localhost").hostname == "localhost"
    with pytest.raises(TransportError, match="needs a later version of kombu"):
        connection(f"redis://localhost?credential_provider={PLAIN}")
