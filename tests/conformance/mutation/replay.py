"""Random steps that were recorded next to the reference once, and are replayed on a server with a mutant.

The reference is slower than the server and is needed once, because it agrees with the replies and the state of the
unchanged library. A run with identical bytes does not notice the mutant. Otherwise the steps of the run are repeated
next to the reference, which decides: unordered data may have another order.
"""

import re
import socket
from collections import Counter
from contextlib import closing
from hashlib import blake2b
from typing import NamedTuple

import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.lua.library import Library

from ..machine import STEPS_IN_A_RUN, Conformance
from ..mirror import LONGER
from ..walk import run
from ..wire import LIBRARY, Wire

#: Recorded state checks per replayed state check: most differences persist.
_LOOKS_FOR_ONE = 3

#: Number of commands sent together.
_TOGETHER = 40

#: Maximum seconds for a reply; a mutant with an endless loop is noticed by it.
REPLY_S = 20

#: Return a digest of the state with its expiry times, whose differences of some seconds are ignored. Hash fields have
#: no order, and neither have types and lanes within a field.
_DIGEST = f"""
local function sorted(text)
    if not string.find(text, " ", 1, true) then
        return text
    end
    local words = {{}}
    for word in string.gmatch(text, "%S+") do
        words[#words + 1] = word
    end
    table.sort(words)
    return table.concat(words, " ")
end
local read = {{
    hash = function(key)
        local of, fields = redis.call("HGETALL", key), {{}}
        for i = 1, #of, 2 do
            fields[#fields + 1] = of[i] .. "=" .. sorted(of[i + 1])
        end
        table.sort(fields)
        return fields
    end,
    zset = function(key) return redis.call("ZRANGE", key, 0, -1, "WITHSCORES") end,
    list = function(key) return redis.call("LRANGE", key, 0, -1) end,
    string = function(key) return {{ redis.call("GET", key) }} end,
}}
local found = redis.call("KEYS", "*")
table.sort(found)
for i, key in ipairs(found) do
    local kept = math.ceil(redis.call("TTL", key) / {LONGER})
    found[i] = key .. " " .. kept .. " " .. table.concat(read[redis.call("TYPE", key).ok](key), " ")
end
return redis.sha1hex(table.concat(found, "\\n"))
"""
_BEGINNING = [("CONFIG", "SET", "maxmemory", "0"), ("FLUSHALL",)]
_END, _END_REPLY = ("ECHO", "the end"), b"$7\r\nthe end\r\n"
_FAILED_AT = re.compile(r"failed at step (\d+);")


class Run(NamedTuple):
    """A run from an empty server that *seed* repeats. *digests*: digests of the replies to each part of *sent*."""

    seed: int
    sent: list[bytes]
    digests: list[bytes]


class _Recorder(Wire):
    """A wire that records the commands of each run; None represents a state check."""

    def __init__(self, client):
        super().__init__(client)
        self.runs = []

    def empty(self):
        super().empty()
        self.runs.append([])

    def add(self, *command):
        super().add(*command)
        self.runs[-1].append(command)

    def add_script(self, name, base, rest, values):
        super().add_script(name, base, rest, values)
        self.runs[-1].append(self._queue[-1])

    def read_state(self):
        super().read_state()
        self.runs[-1][-1] = None


def recorded(server: EmbeddedServer, steps: int, seed: int) -> list[Run]:
    """Return the runs of *steps* random steps. Raise the reference's findings in the unchanged library."""
    with redis.Redis.from_url(server.url) as client, _Recorder(client) as wire:
        digest = client.script_load(_DIGEST)
        _walk(wire, steps, seed)
    sent = [_parts(commands, digest) for commands in wire.runs]
    with closing(_connection(server)) as connection:
        once, twice = ([[_reply(connection, part) for part in parts] for parts in sent] for _ in range(2))
    rows = zip(range(seed, seed + len(sent)), sent, once, twice, strict=True)
    #: A run that does not repeat its own bytes is useless.
    return [Run(own, parts, replies) for own, parts, replies, again in rows if replies == again]


class Replay:
    """Recorded *runs*, replayed on *server*."""

    def __init__(self, server: EmbeddedServer, runs: list[Run]) -> None:
        self._server, self._runs = server, runs

    def client(self) -> redis.Redis:
        """Return a client of the server, which is restarted after a crash, with its memory limit reset."""
        if not self._server.is_running:
            self._server.start()
        client = redis.Redis.from_url(self._server.url, socket_timeout=REPLY_S)
        client.config_set("maxmemory", 0)
        return client

    def notices(self, library: Library) -> str:
        """Return the step at which a run notices that *library* (a test library) is a mutant, or ""."""
        with self.client() as client:
            client.function_flush()
            client.script_load(_DIGEST)
            client.function_load(library.functions.replace(library.name, LIBRARY.name))
        for each in self._runs:
            try:
                with closing(_connection(self._server)) as connection:
                    is_same = all(_reply(connection, part) == digest for part, digest in zip(*each[1:], strict=True))
            except OSError:  # endless loop, or the server crashed
                is_same = False
                self._server.kill()
            found = "" if is_same else self._noticed_by_reference(library, each.seed)
            if found:
                return found
        return ""

    def _noticed_by_reference(self, library: Library, seed: int) -> str:
        with self.client() as client, Wire(client, library=library) as wire:
            try:
                _walk(wire, STEPS_IN_A_RUN, seed)
            except Exception as error:  # any error is a finding
                if isinstance(error, redis.RedisError):  # endless loop, or the server crashed
                    self._server.kill()
                found = _FAILED_AT.search("".join(getattr(error, "__notes__", ())))
                return f"SEED={seed} step {found[1] if found else '?'}"
        return ""


def _parts(commands, digest):
    looks, kept = 0, [*_BEGINNING]
    for command in commands:
        looks += command is None
        if command or looks % _LOOKS_FOR_ONE == 0:
            kept.append(command or ("EVALSHA", digest, 0))
    kept.append(("EVALSHA", digest, 0))
    pack = redis.Connection().pack_commands
    return [b"".join(pack([*kept[i : i + _TOGETHER], _END])) for i in range(0, len(kept), _TOGETHER)]


def _connection(server):
    return socket.create_connection(("127.0.0.1", server.port), REPLY_S)


def _walk(wire, steps, seed):
    tally = Counter()
    run(lambda: Conformance(wire, tally), steps=steps, steps_in_a_run=STEPS_IN_A_RUN, seed=seed, shrink=False)


def _reply(connection, sent):
    """Return the digest of the replies to *sent*."""
    connection.sendall(sent)
    replies = bytearray()
    while not replies.endswith(_END_REPLY):
        some = connection.recv(1 << 20)
        if not some:
            raise ConnectionError("the server closed the connection")
        replies += some
    return blake2b(replies, digest_size=16).digest()
