"""Send endless requests over raw sockets, and measure the memory of the server process."""

from itertools import repeat

import psutil

#: Number of clients per kind of request, and maximum bytes per client. Together they send a multiple of `MAX_GROWTH`.
CLIENTS, SENT = 16, 4_000_000

#: Maximum growth of the process in bytes. Per client, a web process stores 80 kB of a head, and asyncio reads up to
#: 256 kB at a time.
MAX_GROWTH = 40_000_000

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
IN_CHUNKS = b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"

#: Kind of request -> its beginning, and the bytes that are repeated after it.
ENDLESS = {
    "long header lines": (HEAD, b"X-Long: " + b"x" * 65_000 + b"\r\n"),
    "short header lines": (HEAD, b"a:b\r\n" * 1_000),
    "a header line": (HEAD + b"X-Long: ", b"x" * 65_000),
    "a name of a header": (HEAD, b"x" * 65_000),
    "a target": (b"GET /", b"x" * 65_000),
    "a query": (b"GET /?", b"x=y&" * 1_000),
    "blank lines": (b"", b"\r\n" * 1_000),
    "a chunk's size line": (IN_CHUNKS + b"1;", b"x" * 65_000),
    "trailers": (IN_CHUNKS + b"0\r\n", b"X-Long: " + b"x" * 65_000 + b"\r\n"),
    "short trailers": (IN_CHUNKS + b"0\r\n", b"a:b\r\n" * 1_000),
    "a trailer": (IN_CHUNKS + b"0\r\nX-Long: ", b"x" * 65_000),
    "a body": (IN_CHUNKS, b"10000\r\n" + b"x" * 65_536 + b"\r\n"),
    "a long body": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", b"x" * 65_000),
    "requests ahead of replies": (b"", b"GET / HTTP/1.1\r\n\r\n" * 1_000),
    "heads ahead of replies": (b"", b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000),
}


def sent(client, begin, rest, most=SENT):
    """Send up to *most* bytes, or until the server closes the connection. Return the number of bytes."""
    number = 0
    try:
        for part in (begin, *repeat(rest, most // len(rest))):
            client.sendall(part)
            number += len(part)
    except ConnectionError:
        pass
    return number


def status_of(client):
    """Return the status of the reply, or None if the connection was closed without a reply."""
    got = b""
    try:
        while b"\r\n" not in got and (more := client.recv(4096)):
            got += more
    except ConnectionError:
        return None
    return int(got.split(b" ")[1]) if got else None


def why_not_bounded(pid, connect, is_answered):
    """Send all kinds of requests. Return the failures by kind: the process grew, or another client got no reply.

    Args:
        pid: the server process.
        connect: opens a new connection to the process and returns the socket.
        is_answered: returns True if another client gets a reply.
    """
    memory = psutil.Process(pid).memory_info
    wrong = {}
    for kind, (begin, rest) in ENDLESS.items():
        before = memory().rss
        clients = [connect() for _ in range(CLIENTS)]
        number = sum(sent(client, begin, rest) for client in clients)
        if not is_answered():
            wrong[kind] = "another request was not answered"
        if (grown := memory().rss - before) > MAX_GROWTH:
            wrong[kind] = f"{grown:,} bytes more after {number:,} bytes"
        for client in clients:
            client.close()
    return wrong
