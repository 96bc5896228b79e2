"""Check the host, token, origin and size of a request before a route sees it; tokens and roles.

- Host: a name of this machine, or an address. This rejects a page whose own name resolves to this machine (DNS
  rebinding).
- Token: ``Authorization: Bearer TOKEN``. There are no cookies, so no browser sends one automatically. Without tokens,
  only clients on this machine are accepted.
- Origin: set by browsers. A page of another site cannot change anything and, since no CORS header is ever sent, cannot
  read anything.
- Body: at most 1 MB of JSON, within 30 s.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import SettingError
from ..schema.untrusted import MAX_NESTED, loads, strict_json
from .replies import RefusedError, error_reply

#: Roles. Each includes the rights of the roles before it.
ROLES = ("read", "submit", "admin")

#: The role of programs that run jobs. An admin includes this role; it includes no other.
WORKER = "worker"

_ALL = (*ROLES, WORKER)

#: Environment variable with the contents of a token file.
VARIABLE = "CELERY_AFFINITY_WEB_TOKENS"

#: Minimum number of characters of a token: a shorter one can be guessed.
_MIN_LENGTH = 16

_ACCEPTED = f"lines of a role ({', '.join(_ALL)}), a blank and a token of at least {_MIN_LENGTH} characters"


class Tokens:
    """Tokens by their digests, which are compared in constant time."""

    def __init__(self, roles: Mapping[str, str]) -> None:
        """*roles* maps tokens to roles. Raises SettingError."""
        for token, role in roles.items():
            if role not in _ALL or not isinstance(token, str) or len(token) < _MIN_LENGTH or not token.isascii():
                got = f"role {role!r} and a token of {len(token)} characters"
                raise SettingError(f"tokens must be {_ACCEPTED}, in ASCII, got: {got}")
        self._roles = [(_digest(token), role) for token, role in roles.items()]

    def role_of(self, token: str) -> str | None:
        """Return the role of *token*, or None if the token is unknown. Takes equally long for any token."""
        given, matching_role = _digest(token), None
        for digest, role in self._roles:
            if hmac.compare_digest(digest, given):
                matching_role = role
        return matching_role


def role_includes(role: str, needed: str) -> bool:
    """Return True if *role* has the rights of *needed*."""
    if WORKER in (role, needed):
        return role in (needed, ROLES[-1])
    return ROLES.index(role) >= ROLES.index(needed)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def read_tokens(path: str | None) -> dict[str, str] | None:
    """Return token -> role from the file at *path* or from the environment, or None if neither has tokens.

    Raises SettingError, which shows no token.
    """
    try:
        text = Path(path).read_text() if path else os.environ.get(VARIABLE, "").replace(",", "\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingError(f"the token file cannot be read: {type(exc).__name__}: {path!r}") from exc
    where = f"the token file {path!r}" if path else f"${VARIABLE}"
    roles: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if len(words) != 2 or words[0] not in _ALL or len(words[1]) < _MIN_LENGTH:
            raise SettingError(f"{where} must have {_ACCEPTED}; line {number} is wrong")
        roles[words[1]] = words[0]
    if path and not roles:
        raise SettingError(f"{where} must have {_ACCEPTED}; it has none")
    return roles or None


#: Maximum number of bytes of a body, and seconds in which it must arrive completely.
MAX_BYTES, BODY_S = 1_000_000, 30.0

#: Paths without data of the fleet: probes send no token, and the web UI itself requests one from the user.
_PUBLIC = ("/", "/wall", "/healthz", "/readyz", "/favicon.ico")
_PUBLIC_FOLDER = "/page/"

_READS = ("GET", "HEAD")

#: Requests that change nothing, but whose arguments are too long for a URL and need a body.
_QUESTION = re.compile(r"/api/lab/traces/[^/]+/whatif")

#: Requests of programs that run jobs.
_WORKER_REQUESTS = re.compile(
    r"POST /api/workers|GET /api/workers/[^/]+/jobs|POST /api/workers/[^/]+/heartbeat|DELETE /api/workers/[^/]+"
    r"|POST /api/jobs/.+/(start|end)"
)

#: Scope key of the request's effective role.
ROLE = "celery_affinity.role"

#: Scope key of the token's own role: --read-only removes the right to change data, but not the right to see it.
SEES_AS = "celery_affinity.sees_as"

#: Headers of every reply. The web UI needs no other site, and no other site may embed it in a frame.
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"),
]


class AuthMiddleware:
    """Passes valid requests to *inner*. See `celery_affinity.web.asgi` for the parameters."""

    def __init__(self, inner: ASGIApp, tokens: Tokens | None, read_only: bool, names: Iterable[str]) -> None:
        self._inner, self._tokens, self._read_only = inner, tokens, read_only
        own_names = ("localhost", socket.gethostname())
        self._names = {name.lower() for name in (*own_names, *names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check(scope, headers)
            if scope["method"] not in _READS:
                receive = _replayed(await _body(receive, headers))
        except RefusedError as rejected:
            await error_reply(rejected.status, str(rejected), rejected.headers)(scope, receive, _with_headers(send))
            return
        # Starlette re-raises errors that were answered and logged.
        with suppress(Exception):
            await self._inner(scope, receive, _with_headers(send))

    def _check(self, scope: Scope, headers: dict[bytes, str]) -> None:
        host = _hostname(headers.get(b"host", ""))
        if not self._is_own_host(host):
            raise RefusedError(421, f"the Host header must name this machine (see --name), got: {host!r}")
        method, path = scope["method"], path_of(scope)
        needed = needed_role(method, path)
        if needed is None:
            return
        role = self._role(scope, headers)
        scope[SEES_AS] = role
        scope[ROLE] = "read" if self._read_only else role
        if not role_includes(role, needed):
            raise RefusedError(403, f"this requires the role {needed!r}, the token has {role!r}")
        if method not in _READS:
            self._check_change(headers, host, is_question(method, path))

    def _role(self, scope: Scope, headers: dict[bytes, str]) -> str:
        if self._tokens is None:
            client = scope.get("client")
            if client and not is_loopback(client[0]):
                raise RefusedError(403, "without tokens only clients on this machine get an answer")
            return "admin"
        scheme, _, token = headers.get(b"authorization", "").partition(" ")
        role = self._tokens.role_of(token.strip()) if scheme.lower() == "bearer" else None
        if role is None:
            wanted = "a valid token" if scheme else "a token"
            raise RefusedError(401, f"send {wanted}: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})
        return role

    def _check_change(self, headers: dict[bytes, str], host: str, is_question: bool) -> None:
        if self._read_only and not is_question:
            raise RefusedError(403, "this server is read-only: --read-only")
        origin = headers.get(b"origin")
        if origin is not None and _hostname(origin.partition("://")[2]) != host:
            raise RefusedError(403, f"a page of another site cannot change anything here, got Origin: {origin[:100]!r}")
        if headers.get(b"sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise RefusedError(403, "a page of another site cannot change anything here")

    def _is_own_host(self, host: str) -> bool:
        if "*" in self._names or host in self._names:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True


def path_of(scope: Scope) -> str:
    """Return the path as routes see it, without the prefix at which this app is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path") or "")
    return path[len(root) :] if root and (path == root or path.startswith(f"{root}/")) else path


def needed_role(method: str, path: str) -> str | None:
    """Return the role that a request requires; None for no token. Unknown requests require the highest role."""
    if _WORKER_REQUESTS.fullmatch(f"{method} {path}"):
        return WORKER
    if method in _READS:
        return None if path in _PUBLIC or path.startswith(_PUBLIC_FOLDER) else "read"
    if is_question(method, path):
        return "read"
    return "submit" if (method, path) == ("POST", "/api/jobs") else "admin"


def is_question(method: str, path: str) -> bool:
    """Return True if a request with a body changes nothing."""
    return method == "POST" and _QUESTION.fullmatch(path) is not None


def _hostname(host: str) -> str:
    """Return the name or address in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


async def _body(receive: Receive, headers: dict[bytes, str]) -> bytes:
    """Return the body, which is JSON or empty."""
    length = headers.get(b"content-length", "0")
    too_large = RefusedError(413, f"a body must have {MAX_BYTES:,} bytes at most", {"Connection": "close"})
    if not length.isdecimal() or int(length[:19]) > MAX_BYTES:
        raise too_large
    body = bytearray()  # a list of one-byte parts would need many times the memory
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RefusedError(400, "the client closed the connection")
                body += message.get("body", b"")
                if len(body) > MAX_BYTES:
                    raise too_large
                if not message.get("more_body"):
                    break
    except TimeoutError:
        raise RefusedError(
            408, f"the body of a request must arrive within {BODY_S:g} s", {"Connection": "close"}
        ) from None
    if body:
        kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RefusedError(400, f"a body must be JSON: Content-Type: application/json, got: {kind[:100]!r}")
        _check_json(bytes(body))
    return bytes(body)


def _check_json(body: bytes) -> None:
    """Refuse JSON that strict parsers reject: NaN, unpaired surrogates or deep nesting."""
    try:
        strict_json(loads(body, parse_constant=_refuse_constant))
    except ValueError as exc:
        raise RefusedError(
            400, f"a body must be JSON (RFC 8259), nested at most {MAX_NESTED} levels deep: {str(exc)[:200]}"
        ) from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _replayed(body: bytes) -> Receive:
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()  # a disconnect is not reported: a change runs to its end
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *_HEADERS]}
        await send(message)

    return sending
