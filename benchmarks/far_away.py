"""A proxy that makes a server's replies take longer, as a network between a worker and the server does.

python -m benchmarks.far_away 6379 1      # prints the port at which the server is 1 ms farther away
"""

import asyncio
import sys
from contextlib import suppress

_HOST = "127.0.0.1"
_CHUNK = 65536


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            if delay_s:
                loop.call_later(delay_s, writer.write, data)
            else:
                writer.write(data)
    loop.call_later(delay_s, writer.close)


async def serve(port: int, delay_ms: float) -> None:
    """Serve for ever: what the server at *port* says comes *delay_ms* later."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(_HOST, port)
        await asyncio.gather(_pass_on(reader, there_writer, 0), _pass_on(there_reader, writer, delay_ms / 1_000))

    server = await asyncio.start_server(connected, _HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
