"""The guard's Redis client, based on the standard library: redis-py takes 30 MB, twice as much as the guard."""

import socket
from typing import Any, NotRequired, TypedDict


class TLS(TypedDict):
    """The options of redis-py's SSLConnection in a JSON-serialisable form: flags and versions are numbers."""

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
    """The address of a server, and the login."""

    #: Ignored with *sentinels* or *nodes*: the connection goes to the *master*, or to the owner of the cluster's
    #: *slot*.
    host: str | None
    port: int
    #: Path of a Unix socket, which has neither host nor port.
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
            host, port = _find_master(sentinels, address["master"], timeout_s)
            address = {**address, "host": host, "port": port}
        if address.get("nodes"):
            host, port = _find_slot_owner(address, timeout_s)
            address = {**address, "host": host, "port": port}
        self._socket = _open_socket(address, timeout_s)
        self._replies = self._socket.makefile("rb")
        try:
            self._authenticate(address)
        except BaseException:
            self.close()
            raise

    def _authenticate(self, address: Address) -> None:
        if address["password"]:
            self.call("AUTH", *([address["username"]] if address["username"] else []), address["password"])
        if address["client_name"]:
            self.call("CLIENT", "SETNAME", address["client_name"])
        if address["db"]:
            self.call("SELECT", address["db"])

    def call(self, *words: object) -> object:
        """Return the reply to a command: bytes, int, None, or a list of replies.

        Raises ServerError if the server refuses the command. An OSError makes the connection unusable.
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


def _open_socket(address: Address, timeout_s: float) -> socket.socket:
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
    """Return the SSL context that redis-py's SSLConnection creates from these options."""
    import ssl  # imported here, because most guards can save these 4 MB

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


def _find_master(sentinels: list[Address], master: str, timeout_s: float) -> tuple[str, int]:
    """Return host and port of the master from the first Sentinel that knows it. Raises ConnectionError if none does."""
    for sentinel in sentinels:
        try:
            connection = GuardConnection(sentinel, timeout_s)
            try:
                reply = connection.call("SENTINEL", "get-master-addr-by-name", master)
            finally:
                connection.close()
        except (OSError, ServerError):
            continue
        match reply:
            case [bytes() as host, bytes() as port]:
                return host.decode(), int(port)
    raise ConnectionError(f"no Sentinel knows where {master} is")


def _find_slot_owner(address: Address, timeout_s: float) -> tuple[str, int]:
    """Return host and port of the slot's owner from the first node that knows it, or raise ConnectionError.

    Also adds all nodes in the reply to *address*, since the original nodes can disappear later.
    """
    nodes, slot = [(host, port) for host, port in address["nodes"]], address["slot"]
    try:
        for node in list(nodes):
            try:
                slot_ranges = _slot_ranges(node, address, timeout_s)
            except (OSError, ServerError, AttributeError, IndexError, TypeError, ValueError):  # none or a bad reply
                nodes.append(nodes.pop(nodes.index(node)))  # from now on, query other nodes first
                continue
            nodes += dict.fromkeys(named for _, _, owners in slot_ranges for named in owners if named not in nodes)
            for first, last, owners in slot_ranges:
                if first <= slot <= last and owners:
                    return owners[0]
        raise ConnectionError(f"no node of the cluster knows who owns slot {slot}")
    finally:
        address["nodes"] = nodes


def _slot_ranges(
    node: tuple[str, int], address: Address, timeout_s: float
) -> list[tuple[int, int, list[tuple[str, int]]]]:
    """Return first slot, last slot and nodes per range, the owner first. *node* can omit its own host."""
    plain: Address = {**address, "host": node[0], "port": node[1], "nodes": []}
    connection = GuardConnection(plain, timeout_s)
    try:
        reply: Any = connection.call("CLUSTER", "SLOTS")
    finally:
        connection.close()
    return [
        (int(first), int(last), [(named[0].decode() if named[0] else node[0], int(named[1])) for named in named_nodes])
        for first, last, *named_nodes in reply
    ]
