"""Loads the Lua scripts: one for each arrow, with its includes.

A line ``-- @include jobs/x.lua`` is replaced by that file, once in a script; at the beginning of a block it is for what
most calls do without (`deferring`). The files of ``generated/`` are none: they are made from `keys` and `settings`. The
lines ``local name = ARGV[n]`` of a script are its signature: `Script.arguments` takes the values by these names, so the
two sides cannot drift apart.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha1
from importlib.resources import files
from pathlib import Path

from ... import server
from ...rules import keys, settings
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
    "replay",
    "drop",
    "revoke",
    "announce",
    "told",
    "repair",
)

_GENERATED = {
    "generated/keys.lua": keys.lua_source,
    "generated/kinds.lua": keys.lua_kinds,
    "generated/settings.lua": settings.lua_source,
}
_INCLUDE = re.compile(r"-- @include (\S+)$")
_OPENS = re.compile(r"(\b(then|else|do|repeat)|\))(\s+--.*)?$")
_BINDING = re.compile(r"^local (\w+) = .*?\bARGV\[(\d+)\]", re.MULTILINE)
_REST = re.compile(r"^-- ARGV\[(\d+)\.\.\]", re.MULTILINE)
Argument = str | bytes | int


@dataclass(frozen=True)
class Script:
    """An assembled script: *names* are those of its arguments, *takes_rest* whether more values follow them."""

    name: str
    source: str
    names: tuple[str, ...]
    takes_rest: bool

    @cached_property
    def sha(self) -> str:
        return sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def arguments(self, rest: Iterable[Argument] = (), **values: Argument) -> list[Argument]:
        """Return ARGV for *values*, which must be exactly the script's own names, followed by *rest*."""
        if values.keys() != set(self.names):
            raise TypeError(f"{self.name}.lua takes {self.names}, got: {tuple(values)}")
        tail = list(rest)
        if tail and not self.takes_rest:
            raise TypeError(f"{self.name}.lua takes nothing after {self.names}, got: {tail}")
        return [values[name] for name in self.names] + tail


@cache
def load(name: str) -> Script:
    """Return the script of the arrow *name*."""
    own = _read(f"arrows/{name}.lua")
    bindings = {int(position): variable for variable, position in _BINDING.findall(own)}
    rest = [int(position) for position in _REST.findall(own)]
    if sorted(bindings) != list(range(1, len(bindings) + 1)) or rest not in ([], [len(bindings) + 1]):
        raise ValueError(f"{name}.lua must bind ARGV[1] to ARGV[n], each once, then say what follows from ARGV[n+1] on")
    names = tuple(bindings[position] for position in sorted(bindings))
    return Script(name, linked(assembled(name)), names, bool(rest))


def assembled(name: str) -> str:
    """Return the script of the arrow *name* as it reads, with its includes."""
    return _assemble(_read(f"arrows/{name}.lua"), set())


def _read(path: str) -> str:
    generate = _GENERATED.get(path)
    if generate:
        return generate()
    return files(server).joinpath("lua", *path.split("/")).read_text(encoding="utf-8")


def _assemble(source: str, included: set[str]) -> str:
    lines: list[str] = []
    opens: str | None = None  # the line that opens the block of which the next line is the first
    for line in source.splitlines(keepends=True):
        found = _INCLUDE.match(line)
        if not found:
            opens = None if line.isspace() or line.startswith("--") else line
            lines.append(line)
        elif found[1] not in included:
            included.add(found[1])
            text = _assemble(_read(found[1]), included)
            if opens is None:
                lines.append(text)
            elif _OPENS.search(opens):
                lines.append(deferred(text, opens))
            else:
                raise ValueError(f"{line!r} must come first in a block, or before all code, not after {opens!r}")
    return "".join(lines)


def write_all(directory: Path) -> None:
    """Write every assembled script into *directory*, for a linter."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ARROWS:
        (directory / f"{name}.lua").write_text(assembled(name), encoding="utf-8")
