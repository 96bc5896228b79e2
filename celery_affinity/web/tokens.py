"""Tokens and roles: who may do what over HTTP."""

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import SettingError

#: Roles, each with the rights of those before it.
ROLES = ("read", "submit", "admin")

#: The role of programs that run jobs. An admin has its right; it has none of the others.
WORKER = "worker"

_ALL = (*ROLES, WORKER)

#: Environment variable that has what a token file has.
VARIABLE = "CELERY_AFFINITY_WEB_TOKENS"

#: Smallest number of characters of a token: a shorter one can be guessed.
_SHORTEST = 16

_ACCEPTED = f"lines of a role ({', '.join(_ALL)}), a blank and a token of at least {_SHORTEST} characters"


class Tokens:
    """Tokens by their digests, which are compared in constant time."""

    def __init__(self, roles: Mapping[str, str]) -> None:
        """*roles*: token -> role. Raises SettingError."""
        for token, role in roles.items():
            if role not in _ALL or not isinstance(token, str) or len(token) < _SHORTEST or not token.isascii():
                got = f"role {role!r} and a token of {len(token)} characters"
                raise SettingError(f"tokens must be {_ACCEPTED}, in ASCII, got: {got}")
        self._roles = [(_digest(token), role) for token, role in roles.items()]

    def role_of(self, token: str) -> str | None:
        """Return the role of *token*; None for one that is not known. Takes as long for any token."""
        given, found = _digest(token), None
        for digest, role in self._roles:
            if hmac.compare_digest(digest, given):
                found = role
        return found


def includes(role: str, needed: str) -> bool:
    """Return whether *role* has the rights of *needed*."""
    if WORKER in (role, needed):
        return role in (needed, ROLES[-1])
    return ROLES.index(role) >= ROLES.index(needed)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def read_tokens(path: str | None) -> dict[str, str] | None:
    """Return token -> role as the file at *path* says, or the environment; None if neither says any.

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
        if len(words) != 2 or words[0] not in _ALL or len(words[1]) < _SHORTEST:
            raise SettingError(f"{where} must have {_ACCEPTED}; line {number} is wrong")
        roles[words[1]] = words[0]
    if path and not roles:
        raise SettingError(f"{where} must have {_ACCEPTED}; it has none")
    return roles or None
