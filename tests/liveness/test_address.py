"""The guard connects to its worker's server with its own Redis client."""

import json

import pytest
import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.liveness import redis_client
from celery_affinity.liveness.guard import address_of

from ..support.certificates import tls_server
from ..support.processes import wait_until
from ..support.sentinel import Sentinel
from ..support.servers import needs_tls


def answers(pool):
    """Call the server of *pool* with the guard's client; return CLIENT INFO of the connection."""
    address = json.loads(json.dumps(address_of(pool)))
    connection = redis_client.GuardConnection(address, 5)
    try:
        assert connection.call("EVAL", "return {1, 'a', {KEYS[1], false}}", 1, "k") == [1, b"a", [b"k", None]]
        with pytest.raises(redis_client.ServerError, match="unknown"):
            connection.call("NOSUCHCOMMAND")
        connection.call("SET", "reached", connection.call("CLIENT", "GETNAME") or "")
        return connection.call("CLIENT", "INFO").decode()
    finally:
        connection.close()


def test_guard_uses_its_workers_login_and_database():
    with EmbeddedServer(password="swordfish") as server:
        pool = redis.ConnectionPool.from_url(server.url.replace("/0", "/3"), client_name="me")
        assert " db=3 " in answers(pool)
        assert " name=me " in answers(pool)
        redis.Redis.from_url(server.url).acl_setuser(
            "one", enabled=True, passwords=["+one two"], keys="*", commands=["+@all"]
        )
        assert " user=one " in answers(redis.ConnectionPool(port=server.port, username="one", password="one two"))

        class Provider(redis.CredentialProvider):
            def get_credentials(self):
                return "one", "one two"

        assert " user=one " in answers(redis.ConnectionPool(port=server.port, credential_provider=Provider()))
        with pytest.raises(redis_client.ServerError, match="WRONGPASS"):
            answers(redis.ConnectionPool(port=server.port, password="wrong"))


def test_guard_connects_to_a_unix_socket(tmp_path):
    path = tmp_path / "s"
    with EmbeddedServer(options=("--unixsocket", str(path))):
        answers(redis.ConnectionPool(connection_class=redis.UnixDomainSocketConnection, path=str(path)))


def test_guard_follows_a_failover_through_sentinels(tmp_path):
    with EmbeddedServer() as first, EmbeddedServer(options=("--replicaof", f"127.0.0.1 {first.port}")) as second:
        config = tmp_path / "sentinel.conf"
        config.write_text(
            f"sentinel monitor main 127.0.0.1 {first.port} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n"
        )
        with EmbeddedServer(directory=tmp_path) as free:
            port = free.port
        with Sentinel(port, config):
            sentinel = redis.Sentinel([("127.0.0.1", 1), ("127.0.0.1", port)])  # no Sentinel at the first address
            pool = sentinel.master_for("main").connection_pool
            wait_until(lambda: sentinel.discover_slaves("main"), 20, "the Sentinel lists the replica")
            answers(pool)
            assert redis.Redis.from_url(first.url).exists("reached")
            first.kill()
            wait_until(lambda: redis.Redis.from_url(second.url).role()[0] in (b"master", "master"), 30, "a failover")
            wait_until(lambda: sentinel.discover_master("main")[1] == second.port, 10, "the Sentinel has switched")
            assert "flags=N" in answers(pool)


@needs_tls
def test_guard_verifies_tls_like_its_worker(tmp_path):
    with tls_server(tmp_path) as (_, url):
        answers(redis.ConnectionPool.from_url(f"{url}?ssl_ca_certs={tmp_path / 'ca.pem'}&ssl_min_version=771"))
        answers(redis.ConnectionPool.from_url(f"{url}?ssl_cert_reqs=none"))
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            answers(redis.ConnectionPool.from_url(url))
        with pytest.raises(ValueError, match="OCSP"):
            address_of(redis.ConnectionPool.from_url(f"{url}?ssl_validate_ocsp=true"))
