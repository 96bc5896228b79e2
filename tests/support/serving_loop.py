"""An event loop in a thread of its own that serves TCP connections, and leaves none of them open at its end."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

HOST = "127.0.0.1"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class ServingLoop:
    """Each connection has a task, *serve*, and is aborted when that ends, also when it ends before its first step."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def listen(self, serve: Serve) -> int:
        """Have *serve* serve connections. Return their port."""
        return self.wait(self._listen(serve))

    def do(self, call: Callable[[], object]) -> None:
        """Make *call* in the loop's thread, some time soon."""
        with suppress(RuntimeError):  # closed
            self._loop.call_soon_threadsafe(call)

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def close(self) -> None:
        """End all connections."""
        self.wait(self._end())
        self.do(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self, serve: Serve) -> int:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # A coroutine here would be a task of asyncio's: cancelled before its first step, it closes nothing.
            task = self._loop.create_task(serve(reader, writer))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            task.add_done_callback(lambda _: writer.transport.abort())

        server = await asyncio.start_server(accepted, HOST, 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _end(self) -> None:
        # asyncio accepts a connection in one iteration, and takes it up in another, asserting that the server is open
        # and a socket that nobody closes if it is not. So the server is closed when these iterations are over.
        for socket in (each for server in self._servers for each in server.sockets):
            self._loop.remove_reader(socket.fileno())
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tuple(self._serving):
                task.cancel()  # and no task of asyncio's own: it would leave a socket as well
            await asyncio.wait(others)
        for server in self._servers:
            server.close()
        await self._loop.shutdown_asyncgens()
        await asyncio.sleep(0)  # sockets of aborted connections are closed in the loop's next iteration
