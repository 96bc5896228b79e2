"""The guard's own Redis client, of the standard library alone: redis-py takes 30 MB, twice as much as a whole guard."""

import socket
from typing import Any, NotRequired, TypedDict


class TLS(TypedDict):
    """The options of redis-py's SSLConnection, as JSON can hold them: flags and versions are numbers."""

    check_hostname: bool
    cert_reqs: int
    include_verify_flags: list[int]
    exclude_verify_flags: list[int]
    certfile: str | None
    keyfile: str | None
    password: str | None
    cafile: str | None
    capath: str | None
    cadata: str | None
    min_version: int | None
    ciphers: str | None


class Address(TypedDict):
    """The address of a server, and the login. With *sentinels*, host and port are those of the *master* that they name.

    *path*: of a Unix socket, which has neither host nor port. With *nodes* of a cluster, host and port are those of the
    owner of the *slot*.
    """

    host: str | None
    port: int
    path: str | None
    username: str | None
    password: str | None
    db: int
    client_name: str | None
    tls: TLS | None
    sentinels: NotRequired[list["Address"]]
    master: NotRequired[str]
    nodes: NotRequired[list[tuple[str, int]]]
    slot: NotRequired[int]


class ServerError(Exception):
    """The server refused a command."""


class GuardConnection:
    """A connection to the server at *address*, to the master that its Sentinels name, or to the owner of its slot."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        sentinels = address.get("sentinels")
        if sentinels:
            host, port = _ask_sentinels(sentinels, address["master"], timeout_s)
            address = {**address, "host": host, "port": port}
        if address.get("nodes"):
            host, port = _ask_nodes(address, timeout_s)
            address = {**address, "host": host, "port": port}
        self._socket = _connected(address, timeout_s)
        self._replies = self._socket.makefile("rb")
        try:
            self._introduce(address)
        except BaseException:
            self.close()
            raise

    def _introduce(self, address: Address) -> None:
        if address["password"]:
            self.call("AUTH", *([address["username"]] if address["username"] else []), address["password"])
        if address["client_name"]:
            self.call("CLIENT", "SETNAME", address["client_name"])
        if address["db"]:
            self.call("SELECT", address["db"])

    def call(self, *words: object) -> object:
        """Return the reply to a command: bytes, int, None, or a list of these.

        Raises ServerError if the server refuses the command, and OSError, after which the connection is of no use.
        """
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


def _connected(address: Address, timeout_s: float) -> socket.socket:
    if address["path"]:
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(timeout_s)
        plain.connect(address["path"])
        return plain
    plain = socket.create_connection((address["host"], address["port"]), timeout_s)
    if not address["tls"]:
        return plain
    try:
        encrypted: socket.socket = _tls_context(address["tls"]).wrap_socket(plain, server_hostname=address["host"])
    except BaseException:
        plain.close()
        raise
    return encrypted


def _tls_context(options: TLS) -> Any:
    """Return the SSL context that redis-py's SSLConnection makes of these options."""
    import ssl  # not at the top: 4 MB that most guards do without

    context = ssl.create_default_context()
    context.check_hostname = options["check_hostname"]
    context.verify_mode = ssl.VerifyMode(options["cert_reqs"])
    for flag in options["include_verify_flags"]:
        context.verify_flags |= ssl.VerifyFlags(flag)
    for flag in options["exclude_verify_flags"]:
        context.verify_flags &= ~ssl.VerifyFlags(flag)
    if options["certfile"] or options["keyfile"]:
        context.load_cert_chain(options["certfile"] or "", options["keyfile"], options["password"])
    cafile, capath, cadata = options["cafile"], options["capath"], options["cadata"]
    if cafile is not None or capath is not None or cadata is not None:
        context.load_verify_locations(cafile, capath, cadata)
    if options["min_version"] is not None:
        context.minimum_version = ssl.TLSVersion(options["min_version"])
    if options["ciphers"]:
        context.set_ciphers(options["ciphers"])
    return context


def _ask_sentinels(sentinels: list[Address], master: str, timeout_s: float) -> tuple[str, int]:
    """Return host and port of the master, by the first Sentinel that knows it. Raises ConnectionError if none does."""
    for sentinel in sentinels:
        try:
            connection = GuardConnection(sentinel, timeout_s)
            try:
                named = connection.call("SENTINEL", "get-master-addr-by-name", master)
            finally:
                connection.close()
        except (OSError, ServerError):
            continue
        match named:
            case [bytes() as host, bytes() as port]:
                return host.decode(), int(port)
    raise ConnectionError(f"no Sentinel knows where {master} is")


def _ask_nodes(address: Address, timeout_s: float) -> tuple[str, int]:
    """Return host and port of the owner of the slot, by the first node that knows. Raises ConnectionError if none does.

    All nodes that are named go into the nodes of *address*: those that were there first may be gone by the next time.
    """
    nodes, slot = [(host, port) for host, port in address["nodes"]], address["slot"]
    try:
        for node in list(nodes):
            try:
                found = _ranges(node, address, timeout_s)
            except (
                OSError,
                ServerError,
                AttributeError,
                IndexError,
                TypeError,
                ValueError,
            ):  # no answer, or a wrong one
                nodes.append(nodes.pop(nodes.index(node)))  # others are asked first from now on
                continue
            nodes += dict.fromkeys(each for _, _, its in found for each in its if each not in nodes)
            for first, last, its in found:
                if first <= slot <= last and its:
                    return its[0]
        raise ConnectionError(f"no node of the cluster knows who owns slot {slot}")
    finally:
        address["nodes"] = nodes


def _ranges(node: tuple[str, int], address: Address, timeout_s: float) -> list[tuple[int, int, list[tuple[str, int]]]]:
    """Return first slot, last slot, and nodes, the owner first, by *node*, which may leave out its own host."""
    plain: Address = {**address, "host": node[0], "port": node[1], "nodes": []}
    connection = GuardConnection(plain, timeout_s)
    try:
        reply: Any = connection.call("CLUSTER", "SLOTS")
    finally:
        connection.close()
    return [
        (int(first), int(last), [(each[0].decode() if each[0] else node[0], int(each[1])) for each in its])
        for first, last, *its in reply
    ]
