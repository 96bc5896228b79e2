"""Planned switch-overs under load: primary and replica swap roles behind one address."""

from contextlib import ExitStack

import pytest
import redis

from celery_affinity.embedded import EmbeddedServer

from ..support.apps import APP
from ..support.fleet import POOLS, Pools, closing, in_time
from ..support.load import Load
from ..support.processes import wait_until
from ..support.serving_loop import HOST
from .chaos.proxy import Proxy


class Pair:
    """A primary and its replica behind one address, like a hosted server."""

    def __init__(self, stack, directory, executable):
        self.servers = []
        for name in ("one", "two"):
            options = ("--replicaof", f"{HOST} {self.servers[0].port}") if self.servers else ()
            server = EmbeddedServer(directory=directory / name, options=options, executable=executable)
            server.start()
            stack.callback(server.stop)
            self.servers.append(server)
        self._proxy = Proxy(self.servers[0].port)
        stack.callback(self._proxy.close)
        self.url = self._proxy.url("everybody")
        wait_until(self._follows, 20, "the replica follows")

    def _clients(self):
        return [redis.Redis(HOST, each.port, socket_timeout=5) for each in self.servers]

    def _follows(self):
        primary, replica = (each.info("replication") for each in self._clients())
        return replica["master_link_status"] == "up" and primary["master_repl_offset"] == replica["slave_repl_offset"]

    def switch(self):
        """Promote the replica as an operator does; writes wait until it has received all."""
        wait_until(
            lambda: self._clients()[1].info("replication")["master_link_status"] == "up", 30, "the replica is connected"
        )
        primary, replica = self._clients()
        primary.execute_command("CLIENT", "PAUSE", 10_000, "WRITE")
        wait_until(self._follows, 20, "the replica has all writes")
        replica.replicaof("NO", "ONE")
        self._proxy.lead_to("everybody", self.servers[1].port)
        primary.replicaof(HOST, self.servers[1].port)
        primary.execute_command("CLIENT", "UNPAUSE")
        self.servers.reverse()


@pytest.fixture
def pair(server, tmp_path):
    with ExitStack() as stack:
        yield Pair(stack, tmp_path, server._executable)


@pytest.mark.slow_on_redis
@pytest.mark.parametrize("rounds", in_time(3, 20))
def test_planned_switch_over_ends_no_worker_and_loses_no_job(pair, server, tmp_path, rounds):
    with closing(Pools(APP, pair, tmp_path, POOLS, RESULT_URL=server.url, HEARTBEAT_INTERVAL="1")) as pools:
        load = Load(pools)
        for number in range(rounds):
            before = len(load.sent)
            wait_until(lambda before=before: len(load.sent) > before + 50, 60, f"calls continue\n{pools.logs()}")
            pair.switch()
            ended = [pool for pool, worker in pools.workers.items() if not worker.is_running]
            assert ended == [], f"round {number}\n{pools.logs()}"
        sent = load.end()
        wait_until(lambda: set(sent) <= set(pools.ledger.ends()), 60, f"every job ends\n{pools.logs()}")
        assert [pool for pool, worker in pools.workers.items() if not worker.is_running] == []
        wait_until(pools.all_slots_are_free, 30, f"all slots are free\n{pools.logs()}")
        assert {job: runs for job, runs in pools.ledger.starts().items() if runs != 1} == {}
