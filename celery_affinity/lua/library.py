"""The library: one text of all Lua files, with the signatures of its arrows.

A file is a module, or a part of it: its first line, ``-- lanes: ...``, names the table that has its functions. Tables
of all modules are declared before the first file, so the order of files does not matter, and a function may call any
other one. The lines ``local name = ARGV[n]`` of an arrow are its signature: `Arrow.arguments` takes the values by these
names, so the two sides cannot drift apart. A module with a MARK is a rule (`jobs/no_rule.lua`), and entered into the
registry.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

from ..rules.known_marks import MARKS
from . import generated

Argument = str | bytes | int

_HEADER = re.compile(r"-- (\w+): ")
_BINDING = re.compile(r"^    local (\w+) = .*?\bARGV\[(\d+)\]", re.MULTILINE)
_HOOK = re.compile(r"^function no_rule\.(\w+)\(", re.MULTILINE)
_MARK = re.compile(r"^(\w+)\.MARK\b", re.MULTILINE)
_REST = re.compile(r"^    -- ARGV\[(\d+)\.\.\]", re.MULTILINE)

# Before the modules. Most globals do not exist while a library is loaded, and later each look at one costs as much as
# two at a local name: `call.take_globals` makes them local, in the first call.
_BEGINNING = """\
local function its_server()
    return redis
end
local function its_globals()
    return redis, string, math, table, tonumber, unpack, ipairs, pairs, next
end
local redis, string, math, table, tonumber, unpack, ipairs, pairs, next
"""


@dataclass(frozen=True)
class Arrow:
    """An arrow. *names*: those of its arguments. *takes_rest*: whether more values follow."""

    name: str
    names: tuple[str, ...]
    takes_rest: bool

    @cached_property
    def _their_names(self) -> frozenset[str]:
        return frozenset(self.names)

    def arguments(self, rest: Iterable[Argument] = (), **values: Argument) -> list[Argument]:
        """Return ARGV for *values*, which must be exactly the arrow's own names, followed by *rest*."""
        if values.keys() != self._their_names:
            raise TypeError(f"{self.name}.lua takes {self.names}, got: {tuple(values)}")
        tail = list(rest)
        if tail and not self.takes_rest:
            raise TypeError(f"{self.name}.lua takes nothing after {self.names}, got: {tail}")
        return [values[name] for name in self.names] + tail


def bound(name: str, source: str) -> Arrow:
    """Return the arrow *name*, whose file is *source*."""
    bindings = {int(position): variable for variable, position in _BINDING.findall(source)}
    rest = [int(position) for position in _REST.findall(source)]
    if sorted(bindings) != list(range(1, len(bindings) + 1)) or rest not in ([], [len(bindings) + 1]):
        raise ValueError(f"{name}.lua must bind ARGV[1] to ARGV[n], each once, then say what follows from ARGV[n+1] on")
    return Arrow(name, tuple(bindings[position] for position in sorted(bindings)), bool(rest))


@cache
def _files() -> dict[str, str]:
    """Return the text of each Lua file by its path without a suffix, such as ``placing/fill``."""
    return dict(sorted(_below(files(__package__), "")))


def _below(folder: Traversable, path: str) -> Iterable[tuple[str, str]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _below(each, f"{path}{each.name}/")
        elif each.name.endswith(".lua"):
            yield f"{path}{each.name.removesuffix('.lua')}", each.read_text(encoding="utf-8")


@cache
def _arrows() -> dict[str, Arrow]:
    sources = {path.removeprefix("arrows/"): text for path, text in _files().items() if path.startswith("arrows/")}
    return {name: bound(name, source) for name, source in sources.items()}


def arrow(name: str) -> Arrow:
    """Return the arrow *name*. Raises KeyError if there is none."""
    return _arrows()[name]


#: The names of all arrows.
ARROWS = tuple(_arrows())


def assembled(instead: Mapping[str, str] | None = None) -> str:
    """Return the text of all modules, with comments. *instead*: path of a Lua file -> another text, for tests."""
    texts, lua_files = generated.modules(), {**_files(), **(instead or {})}
    names = dict.fromkeys([*texts, "arrows"])
    parts = [f"do -- generated: {name}\n{text}end\n" for name, text in texts.items()]
    for path, text in lua_files.items():
        header = _HEADER.match(text)
        if header is None:
            raise ValueError(f"{path}.lua must begin with its name: -- name: what it is about")
        if not path.startswith("arrows/"):
            names[header[1]] = None
        parts.append(f"do -- {path}\n{text}end\n")
    return _BEGINNING + "".join(f"local {name} = {{}}\n" for name in names) + "".join(parts) + _registry(lua_files)


def _registry(lua_files: Mapping[str, str]) -> str:
    """Return what enters each rule, a module with a MARK, into the registry, with all hooks."""
    hooks = _HOOK.findall(lua_files["jobs/no_rule"])
    rules = [name for text in lua_files.values() for name in _MARK.findall(text)]
    lines = [f"{rule}.{hook} = {rule}.{hook} or no_rule.{hook}\n" for rule in rules for hook in hooks]
    return "".join(
        [
            "do -- registry\n",
            *lines,
            *(f"hooks.by_mark[{rule}.MARK] = {rule}\n" for rule in rules),
            *(f"hooks.is_mark[protocol.{name}] = true\n" for name in MARKS),
            "end\n",
        ]
    )
