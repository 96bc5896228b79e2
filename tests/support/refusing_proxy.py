"""A proxy that parses the Redis protocol and answers chosen commands with an error instead of the server."""

import asyncio
from collections import deque
from contextlib import suppress

import pytest

from .serving_loop import HOST, ServingLoop

_CHUNK = 65536

#: Commands with endless replies: every frame is forwarded on arrival.
_SUBSCRIBES = {"SUBSCRIBE", "PSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE"}


def frame_end(data, begin=0):
    """Return the end of the frame of *data* at *begin*, or -1 if it is incomplete."""
    line_end = data.find(b"\r\n", begin)
    if line_end < 0:
        return -1
    kind, end = data[begin : begin + 1], line_end + 2
    if kind in (b"$", b"="):
        length = int(data[begin + 1 : line_end])
        end += length + 2 if length >= 0 else 0  # -1: nil in RESP2, which redis-py before 8 speaks
        return end if end <= len(data) else -1
    if kind in (b"*", b"%", b"~", b">"):
        for _ in range(max(0, int(data[begin + 1 : line_end])) * (2 if kind == b"%" else 1)):
            end = frame_end(data, end)
            if end < 0:
                return -1
    return end


def words_of(frame):
    """Return the arguments of a command, beginning with its name."""
    words, at = [], frame.find(b"\r\n") + 2
    while at < len(frame):
        end = frame.find(b"\r\n", at)
        length = int(frame[at + 1 : end])
        words.append(frame[end + 2 : end + 2 + length])
        at = end + 2 + length + 2
    return words


def name_of(frame):
    """Return the name of a command, with the first argument for scripts, functions and subcommands."""
    words = words_of(frame)
    name = words[0].decode().upper()
    return f"{name} {words[1].decode()}" if name in ("EVALSHA", "EVAL", "FCALL", "CLIENT", "SCRIPT") else name


class _Pair:
    """A client's connection and its connection to the server."""

    def __init__(self, proxy, client, server):
        self.proxy, self.client, self.server = proxy, client, server
        self.due = deque()  # per pending reply: None, or the error to send instead
        self.is_subscribed = False

    async def commands(self, reader):
        async for frame in _frames(reader):
            name = name_of(frame)
            error = self.proxy.error_for(name)
            self.is_subscribed = self.is_subscribed or (error is None and name in _SUBSCRIBES)
            if error is None:
                if not self.is_subscribed:
                    self.due.append(None)
                self.server.write(frame)
            else:
                self.due.append(error)
                self._say()

    async def replies(self, reader):
        async for frame in _frames(reader):
            self.client.write(frame)
            if self.due and not self.is_subscribed:
                self.due.popleft()
            self._say()

    def _say(self):
        while self.due and self.due[0] is not None:
            self.client.write(b"-%s\r\n" % self.due.popleft().encode())


async def _frames(reader):
    data = b""
    while block := await reader.read(_CHUNK):
        data += block
        while (end := frame_end(data)) >= 0:
            yield data[:end]
            data = data[end:]


class RefusingProxy:
    """A proxy of the server at *server_port*, served by a separate thread."""

    def __init__(self, server_port):
        self._server_port = server_port
        #: Command name -> the next errors, a text or a list; each error is sent once.
        self.refused = {}
        #: Names of all commands.
        self.seen = set()
        #: (command name, error) of each error that was sent.
        self.said = []
        self._loop = ServingLoop("refusing-proxy")
        self.port = self._loop.listen(self._serve)

    @property
    def url(self):
        return f"redis://{HOST}:{self.port}/0"

    def error_for(self, name):
        self.seen.add(name)
        errors = self.refused.get(name, [])
        error = self.refused.pop(name) if isinstance(errors, str) else errors.pop(0) if errors else None
        if error is not None:
            self.said.append((name, error))
        return error

    async def _serve(self, client_reader, client):
        server_reader, server = await asyncio.open_connection(HOST, self._server_port)
        pair = _Pair(self, client, server)
        ways = [asyncio.ensure_future(each) for each in (pair.commands(client_reader), pair.replies(server_reader))]
        try:
            with suppress(OSError):
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (*ways, client.transport, server.transport):
                (each.cancel if each in ways else each.abort)()
            await asyncio.gather(*ways, return_exceptions=True)

    def close(self):
        self._loop.close()


@pytest.fixture
def proxy(valkey):
    """A proxy in front of Valkey."""
    proxy = RefusingProxy(valkey.port)
    yield proxy
    proxy.close()
