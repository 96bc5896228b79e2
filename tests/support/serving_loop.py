"""An event loop in a separate thread that serves TCP connections until it closes them."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

HOST = "127.0.0.1"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class ServingLoop:
    """Runs a task per connection, and aborts the connection when the task ends, even before its first step."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def listen(self, serve: Serve) -> int:
        """Listen for connections and serve them with *serve*. Return the port."""
        return self.wait(self._listen(serve))

    def do(self, call: Callable[[], object]) -> None:
        """Schedule *call* in the loop's thread."""
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
            # asyncio would turn a coroutine into its own task, which closes nothing if cancelled before its first step.
            task = self._loop.create_task(serve(reader, writer))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            task.add_done_callback(lambda _: writer.transport.abort())

        server = await asyncio.start_server(accepted, HOST, 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _end(self) -> None:
        # asyncio accepts a connection in one iteration and handles it in another, where it asserts that the server is
        # open. If the assertion fails, the socket remains open. So the server is closed after these iterations.
        for socket in (each for server in self._servers for each in server.sockets):
            self._loop.remove_reader(socket.fileno())
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tuple(self._serving):
                task.cancel()  # cancelling asyncio's tasks would leave their sockets open
            await asyncio.wait(others)
        for server in self._servers:
            server.close()
        await self._loop.shutdown_asyncgens()
        await asyncio.sleep(0)  # sockets of aborted connections are closed in the loop's next iteration
