"""The guard's own Redis client: what a few scripts need, and the standard library alone.

redis-py by itself takes 30 MB, twice what a whole guard does.
"""

import socket
from typing import Any


class ServerError(Exception):
    """The server refused a command."""


class Connection:
    """A connection to what `guard.describe` described: a server, or the master that Sentinels name."""

    def __init__(self, server: dict[str, Any], timeout_s: float) -> None:
        sentinels = server.get("sentinels")
        if sentinels:
            server = {**server, **_ask_sentinels(sentinels, server["master"], timeout_s)}
        self._socket = _connected(server, timeout_s)
        self._replies = self._socket.makefile("rb")
        try:
            self._introduce(server)
        except BaseException:
            self.close()
            raise

    def _introduce(self, server: dict[str, Any]) -> None:
        if server["password"]:
            self.call("AUTH", *([server["username"]] if server["username"] else []), server["password"])
        if server["client_name"]:
            self.call("CLIENT", "SETNAME", server["client_name"])
        if server["db"]:
            self.call("SELECT", server["db"])

    def call(self, *words: Any) -> Any:
        """Return the reply to a command. Raises ServerError, or OSError after which the connection is of no use."""
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        request = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self._socket.sendall(b"*%d\r\n%s" % (len(parts), request))
        reply = self._read()
        if isinstance(reply, ServerError):
            raise reply
        return reply

    def _read(self) -> Any:
        line = self._replies.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        try:
            return self._parse(line[:1], line[1:-2])
        except (ValueError, RecursionError, OverflowError, MemoryError) as exc:
            raise ConnectionError(f"the server does not speak Redis' protocol: {exc}") from exc

    def _parse(self, kind: bytes, rest: bytes) -> Any:
        if kind == b"-":
            return ServerError(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._replies.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self._read() for _ in range(int(rest))]
        return rest

    def close(self) -> None:
        self._replies.close()
        self._socket.close()


def _connected(server: dict[str, Any], timeout_s: float) -> socket.socket:
    if server["path"]:
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(timeout_s)
        plain.connect(server["path"])
        return plain
    plain = socket.create_connection((server["host"], server["port"]), timeout_s)
    if not server["tls"]:
        return plain
    try:
        encrypted: socket.socket = _tls_context(server["tls"]).wrap_socket(plain, server_hostname=server["host"])
    except BaseException:
        plain.close()
        raise
    return encrypted


def _tls_context(options: dict[str, Any]) -> Any:
    """Return what redis-py's SSLConnection makes of the same options."""
    import ssl  # 4 MB that most guards do without

    context = ssl.create_default_context()
    context.check_hostname = options["check_hostname"]
    context.verify_mode = ssl.VerifyMode(options["cert_reqs"])
    for flag in options["include_verify_flags"]:
        context.verify_flags |= ssl.VerifyFlags(flag)
    for flag in options["exclude_verify_flags"]:
        context.verify_flags &= ~ssl.VerifyFlags(flag)
    if options["certfile"] or options["keyfile"]:
        context.load_cert_chain(options["certfile"], options["keyfile"], options["password"])
    authorities = {name: options[name] for name in ("cafile", "capath", "cadata") if options[name] is not None}
    if authorities:
        context.load_verify_locations(**authorities)
    if options["min_version"] is not None:
        context.minimum_version = ssl.TLSVersion(options["min_version"])
    if options["ciphers"]:
        context.set_ciphers(options["ciphers"])
    return context


def _ask_sentinels(sentinels: list[dict[str, Any]], master: str, timeout_s: float) -> dict[str, Any]:
    """Return host and port of the master, as the first Sentinel that knows has it."""
    for sentinel in sentinels:
        try:
            connection = Connection(sentinel, timeout_s)
            try:
                address = connection.call("SENTINEL", "get-master-addr-by-name", master)
            finally:
                connection.close()
        except (OSError, ServerError):
            continue
        if address:
            return {"host": address[0].decode(), "port": int(address[1])}
    raise ConnectionError(f"no Sentinel knows where {master} is")
