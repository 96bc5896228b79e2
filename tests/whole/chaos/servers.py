"""The servers: a durable server that can lose power, and a master with a replica and a Sentinel."""

import os
import shutil
import signal
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import redis

from celery_affinity.embedded.server import HOST, EmbeddedServer

from ...support.processes import wait_until
from .ledger import Ledger

_SAMPLE_S = 0.05

#: Seconds of writes that `appendfsync everysec` can lose: the last fsync was at most a second ago.
EVERYSEC_S = 1.0


class DurableServer:
    """A server with an append-only file. The ledger records each of its crashes, with the possible loss.

    *name*: the server's name in the ledger.
    """

    def __init__(self, directory: Path, ledger: Ledger, name: str = "server") -> None:
        self._ledger, self._name = ledger, name
        self._server = EmbeddedServer(
            directory=directory,
            # Only `compact` rewrites the file, since a rewrite starts a new file, which the sampler must not miss.
            options=("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"),
        )
        self._server.start()
        self.client = redis.Redis.from_url(self._server.url, socket_timeout=5)
        self._sizes: deque[tuple[float, int]] = deque(maxlen=round(10 / _SAMPLE_S))
        self._sampled = True
        self._sampler = threading.Thread(target=self._sample, name="aof-sampler", daemon=True)
        self._sampler.start()

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def policy(self) -> str:
        """The server's `appendfsync`: "always" or "everysec"."""
        return self.client.config_get("appendfsync")["appendfsync"]

    def sync_to_disk(self, policy: str) -> None:
        self.client.config_set("appendfsync", policy)

    def kill(self) -> None:
        """End the process with SIGKILL; the kernel keeps all its writes."""
        self._ledger.note("kill", self._name, target=self._server.pid)
        self._ledger.note("down", self._name, how="killed", forgets_s=0)
        self._server.kill()

    def lose_power(self) -> None:
        """End the process, and lose all writes that its policy may not have synced to the disk."""
        forgets_s, size = 0.0, None
        if self.policy == "everysec":
            # The sizes are samples, and a busy machine takes few. The file is truncated to one of the samples.
            now_s = monotonic()
            synced = [sample for sample in tuple(self._sizes) if sample[0] <= now_s - EVERYSEC_S]
            sampled_s, size = synced[-1] if synced else (0.0, 0)
            forgets_s = now_s - sampled_s + 2 * _SAMPLE_S
        self._ledger.note("kill", self._name, target=self._server.pid)
        self._ledger.note("down", self._name, how="power lost", forgets_s=forgets_s)
        self._server.kill()
        if size is not None:
            os.truncate(self._file(), size)

    def lose_data(self) -> None:
        """End the process, and delete its data."""
        self._ledger.note("kill", self._name, target=self._server.pid)
        self._ledger.note("down", self._name, how="emptied", forgets_s=1e9)
        self._server.kill()
        shutil.rmtree(self._server.directory / "appendonlydir")

    def start(self) -> None:
        policy = "always"
        self._sizes.clear()
        self._server.start()
        self.sync_to_disk(policy)
        self._ledger.note("up", self._name)

    def pause(self) -> Callable[[], None]:
        """Suspend the process (SIGSTOP): connections open, but get no reply. Return the function that resumes it."""
        pid = self._server.pid
        self._ledger.note("down", self._name, how="paused", forgets_s=0)
        os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            os.kill(pid, signal.SIGCONT)
            self._ledger.note("up", self._name)

        return go_on

    def compact(self) -> None:
        """Rewrite the file, so a restart does not read hours of writes."""
        self.client.bgrewriteaof()
        wait_until(lambda: not self._rewriting(), 60, "the append-only file is rewritten")

    def stop(self) -> None:
        self._sampled = False
        self._sampler.join()
        self._server.stop()

    def _rewriting(self) -> bool:
        state = self.client.info("persistence")
        return bool(state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])

    def _file(self) -> Path:
        """Return the file that the server currently appends to."""
        files = (self._server.directory / "appendonlydir").glob("*.incr.aof")
        return max(files, key=lambda path: int(path.name.split(".")[-3]))

    def _sample(self) -> None:
        while self._sampled:
            with suppress(OSError, ValueError):  # between two files
                self._sizes.append((monotonic(), self._file().stat().st_size))
            sleep(_SAMPLE_S)


class ReplicatedServers:
    """A master, its replica, and a Sentinel that promotes the replica when the master is down."""

    def __init__(self, directory: Path, ledger: Ledger) -> None:
        self._ledger = ledger
        self._master = EmbeddedServer(directory=directory / "one")
        self._master.start()
        self._replica = EmbeddedServer(
            directory=directory / "two", options=("--replicaof", f"{HOST} {self._master.port}")
        )
        self._replica.start()
        self._sentinel = _Sentinel(directory / "sentinel", self._master.port)
        self._sentinel.start()
        wait_until(self._in_step, 20, "the replica follows")

    @property
    def url(self) -> str:
        return f"sentinel://{HOST}:{self._sentinel.port}/0"

    @property
    def client(self) -> redis.Redis:
        return redis.Redis(HOST, self._sentinel.master_port(), socket_timeout=5)

    def fail_over(self) -> None:
        """Kill the master. The replica takes over, and may lack the master's last writes."""
        wait_until(self._in_step, 30, "the replica follows")
        self._ledger.note("kill", "server", target=self._master.pid)
        self._ledger.note("down", "server", how="failed over", forgets_s=EVERYSEC_S)
        self._master.kill()
        self._master, self._replica = self._replica, self._master
        wait_until(lambda: self._sentinel.master_port() == self._master.port, 30, "Sentinel names the new master")
        wait_until(lambda: self._role(self._master) == "master", 30, "the replica is master")
        self._replica.start()
        with redis.Redis(HOST, self._replica.port, socket_timeout=5) as client:
            client.replicaof(HOST, self._master.port)  # Sentinel would do this ten seconds later
        self._ledger.note("up", "server")  # until now there were two masters, and the old one loses its writes

    def switch_over(self) -> None:
        """Let Sentinel swap master and replica: writes wait during the switch-over, and none is lost."""
        wait_until(self._in_step, 30, "the replica follows")
        self._ledger.note("down", "server", how="switched over", forgets_s=0)
        self._sentinel.switch_over()
        self._master, self._replica = self._replica, self._master
        wait_until(lambda: self._sentinel.master_port() == self._master.port, 30, "Sentinel names the new master")
        wait_until(lambda: self._role(self._master) == "master", 30, "the replica is master")
        self._ledger.note("up", "server")

    def stop(self) -> None:
        for each in (self._sentinel, self._master, self._replica):
            each.stop()

    def _in_step(self) -> bool:
        with redis.Redis(HOST, self._replica.port, socket_timeout=2) as client:
            state = client.info("replication")
        return state["role"] == "slave" and state["master_link_status"] == "up" and self._sentinel.knows_a_replica()

    def _role(self, server: EmbeddedServer) -> str:
        with redis.Redis(HOST, server.port, socket_timeout=2) as client:
            return client.info("replication")["role"]


class _Sentinel(EmbeddedServer):
    """The server's executable, run as a Sentinel."""

    def __init__(self, directory: Path, master_port: int) -> None:
        directory.mkdir(parents=True)
        super().__init__(directory=directory)
        self._config = directory / "sentinel.conf"
        self._config.write_text(
            f"sentinel monitor main {HOST} {master_port} 1\n"
            "sentinel down-after-milliseconds main 3000\n"
            "sentinel failover-timeout main 5000\n"
        )

    def _arguments(self, port: int) -> list[str]:
        return [str(self._config), "--port", str(port), "--bind", HOST, "--sentinel"]

    def master_port(self) -> int:
        """Return the port of Sentinel's current master."""
        with redis.Redis(HOST, self.port, socket_timeout=2) as client:
            return int(client.sentinel_get_master_addr_by_name("main")[1])

    def switch_over(self) -> None:
        """Begin a planned switch-over."""
        with redis.Redis(HOST, self.port, socket_timeout=5) as client:
            client.execute_command("SENTINEL", "FAILOVER", "main", "COORDINATED")

    def knows_a_replica(self) -> bool:
        with redis.Redis(HOST, self.port, socket_timeout=2) as client:
            (state,) = client.sentinel_masters().values()
        return state["num-slaves"] >= 1 and not state["is_odown"] and "failover" not in str(state["flags"])
