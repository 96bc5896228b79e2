"""A proxy that delays the replies of a server, to simulate network latency.

python -m benchmarks.far_away 6379 1      # prints the port of a proxy that delays the replies by 1 ms
"""

import asyncio
import sys
from contextlib import suppress

_HOST = "127.0.0.1"
_CHUNK = 65536


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            if delay_s:
                loop.call_later(delay_s, writer.write, data)
            else:
                writer.write(data)
    loop.call_later(delay_s, writer.close)


async def serve(port: int, delay_ms: float) -> None:
    """Forward connections to the server at *port* until cancelled, and delay its replies by *delay_ms*."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(_HOST, port)
        await asyncio.gather(_forward(reader, server_writer, 0), _forward(server_reader, writer, delay_ms / 1_000))

    server = await asyncio.start_server(connected, _HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
