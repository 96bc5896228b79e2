"""A TCP proxy that breaks connections: each client has a separate link to the server."""

import asyncio
from typing import Any

from ...support.serving_loop import HOST, ServingLoop

_CHUNK = 65536


class _Pair:
    """A client's connection and its connection to the server."""

    def __init__(self, link: "Link", client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._link, self._ends = link, (client, server)
        self._silent = asyncio.Event()  # set: no data passes, and both ends stay open

    def go_silent(self) -> None:
        self._silent.set()

    def cut(self) -> None:
        """Reset both connections."""
        for end in self._ends:
            end.transport.abort()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool) -> None:
        try:
            while data := await reader.read(_CHUNK):
                if self._link.delay_s:
                    await asyncio.sleep(self._link.delay_s)
                if self._link.silent:
                    self._silent.set()
                if self._silent.is_set():
                    continue  # swallowed
                if replies and self._link.stall_in and self._link.stall_in in data:
                    self._link.stall_in = b""
                    self._silent.set()
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    continue
                if replies and self._link.cut_in_reply and len(data) > 1:
                    self._link.cut_in_reply = False
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        if not self._silent.is_set():
            self.cut()


class Link:
    """A client's link to the server. Faults are attributes, read for each chunk."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.port = 0
        self.delay_s = 0.0
        self.silent = False
        self.cut_in_reply = False
        self.stall_in = b""
        self.pairs: set[_Pair] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(HOST, self.server_port)
        except OSError:
            return
        pair = _Pair(self, writer, server_writer)
        self.pairs.add(pair)
        try:
            await asyncio.gather(
                pair.pump(reader, server_writer, replies=False), pair.pump(server_reader, writer, replies=True)
            )
        finally:
            pair.cut()
            self.pairs.discard(pair)


class Proxy:
    """Links by name, served by a separate thread."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._loop = ServingLoop("proxy")
        self._links: dict[str, Link] = {}

    def url(self, name: str) -> str:
        """Return the broker's URL over the link *name*."""
        if name not in self._links:
            self._links[name] = link = Link(self._server_port)
            link.port = self._loop.listen(link.serve)
        return f"redis://{HOST}:{self._links[name].port}/0"

    def lead_to(self, name: str, server_port: int) -> None:
        """Route new connections to another server; existing connections stay."""
        self._set(name, server_port=server_port)

    def cut(self, name: str) -> None:
        """Reset the link's connections."""
        self._loop.do(lambda: [pair.cut() for pair in tuple(self._links[name].pairs)])

    def cut_in_reply(self, name: str) -> None:
        """Reset the next connection that gets a reply, in the middle of it."""
        self._set(name, cut_in_reply=True)

    def stall_in(self, name: str, text: bytes) -> None:
        """Make the next connection that gets a reply with *text* half-open, in the middle of the reply."""
        self._set(name, stall_in=text)

    def delay(self, name: str, seconds: float) -> None:
        """Delay each chunk in both directions."""
        self._set(name, delay_s=seconds)

    def silence(self, name: str) -> None:
        """Make every connection of the link half-open, and new ones too, until it is healed."""
        self._set(name, silent=True)
        self._loop.do(lambda: [pair.go_silent() for pair in tuple(self._links[name].pairs)])

    def heal(self, name: str) -> None:
        """Let new connections work again; silent connections stay silent."""
        self._set(name, delay_s=0.0, silent=False, cut_in_reply=False)

    def close(self) -> None:
        """End all links."""
        self._loop.close()

    def _set(self, name: str, **values: Any) -> None:
        self._loop.do(lambda: [setattr(self._links[name], key, value) for key, value in values.items()])
