"""One function per fault: it injects the fault once, and ends it later."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from time import monotonic, sleep

import redis

from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from .app import WORKER_TIMEOUT_S
from .fleet import MEMBERS, Fleet
from .ledger import Ledger
from .operator import Operator
from .proxy import Proxy
from .servers import DurableServer, ReplicatedServers

PREFORK = tuple(member for member in MEMBERS if member.pool == "prefork")
LINKS = (*(member.name for member in MEMBERS), "publishers")


@dataclass
class Field:
    """The targets of faults. *proxy*: None if clients connect directly to the servers."""

    rng: Random
    ledger: Ledger
    fleet: Fleet
    server: DurableServer | ReplicatedServers
    results: DurableServer
    proxy: Proxy | None
    operator: Operator
    _later: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list)
    _numbers: count = field(default_factory=count)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Schedule *call* in *seconds*, or at the end of the storm."""
        heappush(self._later, (monotonic() + seconds, next(self._numbers), call))

    def wait(self, seconds: float) -> None:
        """Wait, and run the calls that become due."""
        until = monotonic() + seconds
        while (remaining_s := until - monotonic()) > 0:
            while self._later and self._later[0][0] <= monotonic():
                heappop(self._later)[2]()
            sleep(min(remaining_s, 0.05))

    def heal(self) -> None:
        """Wait until all faults have ended."""
        while self._later:
            self.wait(max(0.0, self._later[0][0] - monotonic()) + 0.01)

    @property
    def is_whole(self) -> bool:
        return not self._later

    def member(self) -> str:
        return self.rng.choice(MEMBERS).name

    def durable(self) -> DurableServer:
        assert isinstance(self.server, DurableServer), "a storm for one server"
        return self.server

    def links(self) -> Proxy:
        assert self.proxy is not None, "a storm with a proxy"
        return self.proxy


Fault = Callable[[Field], None]

# -- processes


def kill_worker(on: Field) -> None:
    on.fleet.kill_worker(on.member())


def kill_pool_process(on: Field) -> None:
    on.fleet.kill_pool_process(on.rng.choice(PREFORK).name, on.rng)


def kill_guard(on: Field) -> None:
    on.fleet.kill_guard(on.member(), on.rng)


def kill_dispatcher(on: Field) -> None:
    on.fleet.kill_dispatcher()


def kill_publisher(on: Field) -> None:
    """Kill a publisher; another one publishes the rest."""
    if on.fleet.kill_publisher():
        on.fleet.publish(f"heir-{on.rng.random()}", 400, 80)


def suspend_worker(on: Field) -> None:
    """Suspend a worker until well after it is reported dead."""
    go_on = on.fleet.suspend(on.member(), pool_too=on.rng.random() < 0.5)
    on.later(WORKER_TIMEOUT_S + on.rng.uniform(1, 3), go_on)


def pause_worker(on: Field) -> None:
    """Suspend a worker for less than the worker timeout."""
    go_on = on.fleet.suspend(on.member(), pool_too=on.rng.random() < 0.5)
    on.later(on.rng.uniform(0.3, 2), go_on)


def block_loop(on: Field) -> None:
    on.fleet.block_loop(on.member())


def restart_worker(on: Field) -> None:
    on.fleet.restart(on.member())


def restart_blocked_worker(on: Field) -> None:
    """Stop a worker normally while its event loop is blocked and its inbox fills."""
    name = on.member()
    on.fleet.block_loop(name)
    on.wait(1)
    on.fleet.restart(name)


def start_twin(on: Field) -> None:
    if len(on.fleet.twins) < 2:
        on.fleet.start_twin(on.member())


# -- the server


def kill_server(on: Field) -> None:
    _away(on, on.durable().kill)


def lose_power(on: Field) -> None:
    _away(on, on.durable().lose_power)


def lose_power_everysec(on: Field) -> None:
    """Let the server sync every second only, for long enough that a second's jobs are unsynced; then cut its power."""
    on.durable().sync_to_disk("everysec")
    on.wait(2.5)
    _away(on, on.durable().lose_power)


def lose_data(on: Field) -> None:
    _away(on, on.durable().lose_data)


def _away(on: Field, end: Callable[[], None]) -> None:
    end()
    on.wait(on.rng.choice((0.0, 1.5, WORKER_TIMEOUT_S + 1)))  # sometimes longer than the worker timeout
    on.durable().start()


# -- the results' server


def kill_results(on: Field) -> None:
    on.results.kill()
    on.wait(on.rng.choice((0.0, 1.5, WORKER_TIMEOUT_S + 1)))
    on.results.start()


def lose_results(on: Field) -> None:
    on.results.lose_data()
    on.wait(on.rng.choice((0.0, 1.5)))
    on.results.start()


def pause_results(on: Field) -> None:
    """Pause the results' server for a moment, or for longer than the reply timeout."""
    go_on = on.results.pause()
    on.wait(on.rng.choice((0.2, 1, 3)))
    go_on()


def kill_both_servers(on: Field) -> None:
    """Kill the broker's server and the results' server; restart them in random order."""
    servers = [on.durable(), on.results]
    for server in servers:
        server.kill()
    on.rng.shuffle(servers)
    for server in servers:
        on.wait(on.rng.choice((0.0, 1.5)))
        server.start()


# -- the server, and its scripts


def fail_over(on: Field) -> None:
    assert isinstance(on.server, ReplicatedServers), "a storm with a replica"
    on.server.fail_over()


def switch_over(on: Field) -> None:
    assert isinstance(on.server, ReplicatedServers), "a storm with a replica"
    on.server.switch_over()


def flush_functions(on: Field) -> None:
    with suppress(redis.RedisError):
        on.server.client.function_flush()
        on.server.client.script_flush()  # kombu has some


def kill_clients(on: Field) -> None:
    """Close every connection of the server."""
    with suppress(redis.RedisError):
        on.ledger.note("cut", "*")
        on.server.client.client_kill_filter(_type="normal", skipme=True)
        on.server.client.client_kill_filter(_type="pubsub", skipme=True)


# -- the network


def cut_link(on: Field) -> None:
    name = on.rng.choice(LINKS)
    on.ledger.note("cut", name)
    on.links().cut(name)


def cut_in_reply(on: Field) -> None:
    """Lose a reply: the server executed the command, and the client repeats it."""
    name = on.rng.choice((*LINKS, *("publishers",) * 4))
    on.ledger.note("cut", name)
    on.links().cut_in_reply(name)


def delay_link(on: Field) -> None:
    name = on.rng.choice(LINKS)
    on.ledger.note("slow", name)
    on.links().delay(name, on.rng.choice((0.01, 0.05, 0.3)))
    on.later(on.rng.uniform(1, 3), lambda: _heal(on, name))


def silence_link(on: Field) -> None:
    """Make all connections of a client half-open for a moment, or until its worker is reported dead."""
    name = on.rng.choice(LINKS)
    on.ledger.note("silence", name)
    on.links().silence(name)
    on.later(on.rng.choice((0.3, 1, 2, WORKER_TIMEOUT_S + 2)), lambda: _heal(on, name))


def _heal(on: Field, name: str) -> None:
    on.links().heal(name)
    on.ledger.note("healed", name)


# -- memory


def fill_memory(on: Field) -> None:
    """Fill the server's memory for a while in which workers run the existing jobs."""
    client, began = on.durable().client, monotonic()
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1_000_000)  # less than an empty server uses
    on.ledger.note("full", "server", pending=_pending(on), began=began)
    on.later(on.rng.uniform(3, 6), lambda: _relieve(on))


def _relieve(on: Field) -> None:
    client = on.durable().client
    silent_s = max(worker.last_heartbeat_s for worker in Report(Reader(client, Keys())).status().workers)
    pending = _pending(on)
    client.config_set("maxmemory", 0)
    on.ledger.note("relief", "server", pending=pending, silent_s=silent_s)


def _pending(on: Field) -> int:
    return sum(each.pending for each in Report(Reader(on.durable().client, Keys())).status().types)
