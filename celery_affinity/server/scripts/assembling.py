"""Loads the Lua scripts: one for each arrow, with its parts.

The line ``-- @include jobs/x.lua``, before all code of a file, is replaced by that part, once in a script. The line
``-- @deferred jobs/x.lua``, first in a block, is replaced likewise, but the part is defined only when the block runs:
most calls do without it (`deferring`). Of a part that the script includes as well, the functions that only the block
uses are deferred. The parts in ``generated/`` are no files: they are made from `keys` and `shared_settings`. The lines
``local name = ARGV[n]`` of an arrow are its signature: `Script.arguments` takes the values by these names, so the two
sides cannot drift apart.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha1
from importlib.resources import files
from pathlib import Path

from ... import server
from ...rules import keys, shared_settings
from .deferring import deferred
from .linking import linked

ARROWS = (
    "publish",
    "ingest",
    "claim",
    "ack",
    "release",
    "requeue",
    "join",
    "sync",
    "beat",
    "leave",
    "recover",
    "tick",
    "purge",
    "configure",
    "pause",
    "resume",
    "move",
    "replay",
    "drop",
    "revoke",
    "announce",
    "told",
    "callers",
    "part",
    "shared",
    "recur",
    "stop",
    "suspend",
    "due",
    "leave_due",
    "fire",
    "repair",
)

_GENERATED = {
    "generated/keys.lua": keys.lua_source,
    "generated/kinds.lua": keys.lua_kinds,
    "generated/settings.lua": shared_settings.lua_source,
}
_DIRECTIVE = re.compile(r"-- @(include|deferred) (\S+)$")
_OPENS = re.compile(r"(\b(then|else|do|repeat)|\bfunction\b[^()]*\([^()]*\))(\s+--.*)?$")
_BINDING = re.compile(r"^local (\w+) = .*?\bARGV\[(\d+)\]", re.MULTILINE)
_REST = re.compile(r"^-- ARGV\[(\d+)\.\.\]", re.MULTILINE)
Argument = str | bytes | int


@dataclass(frozen=True)
class Script:
    """A linked script. *names*: those of the arguments. *takes_rest*: whether more values follow."""

    name: str
    source: str
    names: tuple[str, ...]
    takes_rest: bool

    @cached_property
    def sha(self) -> str:
        return sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def _their_names(self) -> frozenset[str]:
        return frozenset(self.names)

    def arguments(self, rest: Iterable[Argument] = (), **values: Argument) -> list[Argument]:
        """Return ARGV for *values*, which must be exactly the script's own names, followed by *rest*."""
        if values.keys() != self._their_names:
            raise TypeError(f"{self.name}.lua takes {self.names}, got: {tuple(values)}")
        tail = list(rest)
        if tail and not self.takes_rest:
            raise TypeError(f"{self.name}.lua takes nothing after {self.names}, got: {tail}")
        return [values[name] for name in self.names] + tail


@cache
def load(name: str) -> Script:
    """Return the script of the arrow *name*, which still says in its first line what it is."""
    own = _read(f"arrows/{name}.lua")
    names, takes_rest = bound(name, own)
    return Script(name, own.splitlines(keepends=True)[0] + linked(assembled(name)), names, takes_rest)


def bound(name: str, own: str) -> tuple[tuple[str, ...], bool]:
    """Return the names of the arguments in *own*, the text of the arrow *name*, and whether more values follow."""
    bindings = {int(position): variable for variable, position in _BINDING.findall(own)}
    rest = [int(position) for position in _REST.findall(own)]
    if sorted(bindings) != list(range(1, len(bindings) + 1)) or rest not in ([], [len(bindings) + 1]):
        raise ValueError(f"{name}.lua must bind ARGV[1] to ARGV[n], each once, then say what follows from ARGV[n+1] on")
    return tuple(bindings[position] for position in sorted(bindings)), bool(rest)


def assembled(name: str) -> str:
    """Return the script of the arrow *name* with its parts, not linked yet: readable, and what a linter checks."""
    return _assemble(_read(f"arrows/{name}.lua"), set())


@cache
def _read(path: str) -> str:
    generate = _GENERATED.get(path)
    if generate:
        return generate()
    return files(server).joinpath("lua", *path.split("/")).read_text(encoding="utf-8")


def _assemble(source: str, included: set[str]) -> str:
    lines: list[str] = []
    last_line: str | None = None  # of code; None before the first one
    follows_code = False
    for line in source.splitlines(keepends=True):
        directive = _DIRECTIVE.match(line)
        if directive:
            word, path = directive.groups()
            _check_place(line, word, last_line, follows_code and bool(_OPENS.search(last_line or "")))
            text = "" if path in included else _assemble(_read(path), included)
            included.add(path)
            lines.append(deferred(text, last_line) if last_line else text)
            continue
        lines.append(line)
        if line.isspace() or line.startswith("--"):
            follows_code = False
        else:
            last_line, follows_code = line, True
    return "".join(lines)


def _check_place(line: str, word: str, last_line: str | None, may_defer: bool) -> None:
    """Raise ValueError if *word* is the one for another place than that of *line*."""
    if word == "include" and last_line is not None:
        raise ValueError(f"{line!r} must come before all code, not after {last_line!r}; in a block, say @deferred")
    if word == "deferred" and last_line is None:
        raise ValueError(f"{line!r} must come first in a block; before all code, say @include")
    if word == "deferred" and not may_defer:
        raise ValueError(f"{line!r} must come first in a block, not after {last_line!r}")


def write_all(directory: Path) -> None:
    """Write every assembled script into *directory*, for a linter."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ARROWS:
        (directory / f"{name}.lua").write_text(assembled(name), encoding="utf-8")
