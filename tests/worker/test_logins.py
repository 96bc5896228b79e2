"""A provider renews a login while workers run, as on a managed server (IAM)."""

import json
import threading

import psutil
import pytest
import redis

from celery_affinity.embedded import EmbeddedServer

from ..support import since
from ..support.apps import APP, app_for
from ..support.cluster import Cluster
from ..support.fleet import POOLS_IN_TIME
from ..support.ledger import Ledger
from ..support.processes import start_worker, wait_until

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(not since.PROVIDERS, reason="kombu before 5.6.1 knows no providers"),
]

PROVIDERS = "tests.support.apps.logins"


class Logins:
    """Users of a server with one valid login at a time: connections of earlier users are closed, as on a managed
    server.
    """

    def __init__(self, client, path):
        self._client, self._path, self._number = client, path, 0
        self.renew()

    @property
    def user(self):
        return f"login-{self._number}"

    def renew(self):
        self._number += 1
        self._client.acl_setuser(
            self.user, enabled=True, passwords=["+secret"], keys="*", channels="*", commands=["+@all"]
        )
        written = self._path.with_suffix(".new")
        written.write_text(f"{self.user} secret")
        written.replace(self._path)  # in one step: a provider can read the file at any moment

    def of_connections(self):
        users = {each["user"] for each in self._client.client_list()}
        return users - {"default", "(superuser)"}  # replicas log in as the superuser

    def is_of(self, pid):
        """True if process *pid* has connections, and all belong to the valid user."""
        ports = {each.laddr.port for each in psutil.Process(pid).net_connections()}
        users = {each["user"] for each in self._client.client_list() if int(each["addr"].rpartition(":")[2]) in ports}
        return users == {self.user}

    def end_earlier(self):
        for number in range(1, self._number):
            self._client.acl_deluser(f"login-{number}")


@pytest.fixture
def managed(server, tmp_path):
    """A server whose users come and go, and a client of the server."""
    with (
        EmbeddedServer(directory=tmp_path / "managed", executable=server._executable) as managed,
        redis.Redis.from_url(managed.url) as client,
    ):
        yield managed, client


def start(managed, client, tmp_path, monkeypatch, provider, pool, broker=None):
    """Start a worker of *pool*, and continuous calls. Return the logins, the worker, its ledger and the calls.

    *broker*: another server, whose logins stay; then the managed server has the jobs as the server of a cohort.
    """
    monkeypatch.setenv("LOGIN", str(tmp_path / "login"))  # for the producer as well
    logins = Logins(client, tmp_path / "login")
    first, semicolon, others = managed.url.partition(";")
    url = f"{first}?credential_provider={PROVIDERS}.{provider}{semicolon}{others}"
    ledger = Ledger(tmp_path / "ledger")
    conf = {"broker_transport_options": {"reauth_check_interval": 1}}
    if broker is not None:
        conf["affinity_cohorts"] = {"eu": {"types": ["pdf"], "url": url}}
        url = broker.url
    results = url if semicolon else managed.url  # Celery's own backend, for one server, never renews a login
    env = {"LEDGER": str(ledger.path), "RESULT_URL": results, "HEARTBEAT_INTERVAL": "0.5", "CONF": json.dumps(conf)}
    worker = start_worker(APP, url, ["pdf"], pool=pool, concurrency=2, env=env)
    worker.wait_ready(60)
    return logins, worker, ledger, Calls(url, conf)


class Calls:
    """Continuous calls by one producer that keeps its connection."""

    def __init__(self, url, conf):
        self._app = app_for(url, **conf)
        self.sent, self._over = [], threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self):
        while not self._over.wait(0.05):
            job = f"job-{len(self.sent)}"
            self._app.send_task(f"{APP}.late", (job, 0.01), queue="pdf")
            self.sent.append(job)

    def end(self, ledger, worker):
        """Stop the calls, and wait until all jobs have ended. Return the jobs."""
        self._over.set()
        self._thread.join(20)
        self._app.close()
        wait_until(lambda: set(self.sent) <= set(ledger.ends()), 20, f"every job ends\n{worker.log()[-4000:]}")
        return self.sent

    def go_on(self, ledger, worker):
        number = len(self.sent)
        wait_until(lambda: len(self.sent) > number + 5, 20, f"calls are made\n{worker.log()[-4000:]}")
        last = self.sent[-1]
        wait_until(lambda: last in ledger.ends(), 20, f"{last} runs\n{worker.log()[-4000:]}")


@pytest.mark.parametrize("pool", POOLS_IN_TIME)
def test_streamed_login_reaches_each_connection_before_the_earlier_ends(managed, tmp_path, monkeypatch, pool):
    server, client = managed
    logins, worker, ledger, calls = start(server, client, tmp_path, monkeypatch, "Streaming", pool)
    for _ in range(2):
        calls.go_on(ledger, worker)
        logins.renew()
        calls.go_on(ledger, worker)
        wait_until(
            lambda: logins.of_connections() == {logins.user},
            30,
            f"all connections have the new login, not {client.client_list()}\n{worker.log()[-4000:]}",
        )
        logins.end_earlier()
    calls.go_on(ledger, worker)
    sent = calls.end(ledger, worker)
    assert ledger.starts() == dict.fromkeys(sent, 1)
    assert "Connection to broker lost" not in worker.log()


@pytest.mark.parametrize("provider", ["Plain", "Streaming"])
def test_guard_reports_a_death_with_renewed_login(managed, tmp_path, monkeypatch, provider):
    server, client = managed
    logins, worker, ledger, calls = start(server, client, tmp_path, monkeypatch, provider, "prefork")
    calls.go_on(ledger, worker)
    logins.renew()
    logins.end_earlier()
    calls.go_on(ledger, worker)
    calls.end(ledger, worker)
    check_guard_reports_death(logins, worker)


def check_guard_reports_death(logins, worker):
    children = psutil.Process(worker.pid).children()
    (guard,) = [process.pid for process in children if "guard of" in " ".join(process.cmdline())]
    wait_until(lambda: logins.is_of(guard), 30, f"the guard is back\n{worker.log()[-4000:]}")
    worker.kill()
    wait_until(lambda: "died; jobs reclaimed from it" in worker.log(), 5, worker.log()[-2000:])


class NodesClient:
    """A client that sends each command of `Logins` to every node of a cluster."""

    def __init__(self, cluster):
        self._cluster = cluster

    def __getattr__(self, name):
        def ask(*args, **options):
            replies = []
            for node in self._cluster.alive:
                with redis.Redis(port=node.port) as client:
                    replies.append(getattr(client, name)(*args, **options))
            return [each for reply in replies for each in reply] if name == "client_list" else replies

        return ask


@pytest.mark.parametrize("provider", ["Plain", pytest.param("Streaming", marks=pytest.mark.slow)])
def test_logins_are_renewed_on_every_node_of_a_cluster(tmp_path, monkeypatch, provider):
    """After a failover, the worker and its guard, which reports the death, use the new primary with the new login."""
    with Cluster(directory=tmp_path / "nodes", primaries=1) as cluster:
        nodes = NodesClient(cluster)
        logins, worker, ledger, calls = start(cluster, nodes, tmp_path, monkeypatch, provider, "prefork")
        calls.go_on(ledger, worker)
        logins.renew()
        logins.end_earlier()
        calls.go_on(ledger, worker)
        cluster.hand_over()
        calls.go_on(ledger, worker)
        sent = calls.end(ledger, worker)
        assert ledger.starts() == dict.fromkeys(sent, 1)
        assert logins.of_connections() == {logins.user}
        check_guard_reports_death(logins, worker)


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["Plain", "Streaming"])
def test_guard_of_a_cohort_reports_with_renewed_login(managed, valkey, redis_client, tmp_path, monkeypatch, provider):
    server, client = managed
    logins, worker, ledger, calls = start(server, client, tmp_path, monkeypatch, provider, "prefork", broker=valkey)
    for _ in range(2):
        calls.go_on(ledger, worker)
        logins.renew()
        logins.end_earlier()
        calls.go_on(ledger, worker)
    sent = calls.end(ledger, worker)
    assert ledger.starts() == dict.fromkeys(sent, 1)
    check_guard_reports_death(logins, worker)
