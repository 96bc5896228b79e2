"""The library: one text of all Lua files, with the signatures of its arrows.

A file is a module, or a part of it: its first line, ``-- lanes: ...``, names the table that has its functions. Tables
of all modules are declared before the first file, so the order of files does not matter, and a function may call any
other one. The lines ``local name = ARGV[n]`` of an arrow are its signature: `Arrow.arguments` takes the values by these
names, so the two sides cannot drift apart. A module with a MARK is a rule (`jobs/default_hooks.lua`), and entered into the
registry.

Two ways to call the arrows of the library.

A server keeps the library as functions (`ByFunction`). The text defines everything once, when it is loaded. One that
refuses functions runs the text as a script (`ByScript`), which defines everything anew in each call.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Protocol

from ..schema.keys import SCHEMA
from ..schema.rules_codec import MARKS
from . import generated

Argument = str | bytes | int

_HEADER = re.compile(r"-- (\w+): ")
_BINDING = re.compile(r"^    local (\w+) = .*?\bARGV\[(\d+)\]", re.MULTILINE)
_HOOK = re.compile(r"^function default_hooks\.(\w+)\(", re.MULTILINE)
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
class ServerFunction:
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


def read_bindings(name: str, source: str) -> ServerFunction:
    """Return the arrow *name*, whose file is *source*."""
    bindings = {int(position): variable for variable, position in _BINDING.findall(source)}
    rest = [int(position) for position in _REST.findall(source)]
    if sorted(bindings) != list(range(1, len(bindings) + 1)) or rest not in ([], [len(bindings) + 1]):
        raise ValueError(f"{name}.lua must bind ARGV[1] to ARGV[n], each once, then say what follows from ARGV[n+1] on")
    return ServerFunction(name, tuple(bindings[position] for position in sorted(bindings)), bool(rest))


@cache
def _files() -> dict[str, str]:
    """Return the text of each Lua file by its path without a suffix, such as ``matching/fill``."""
    return dict(sorted(_below(files(__package__), "")))


def _below(folder: Traversable, path: str) -> Iterable[tuple[str, str]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _below(each, f"{path}{each.name}/")
        elif each.name.endswith(".lua"):
            yield f"{path}{each.name.removesuffix('.lua')}", each.read_text(encoding="utf-8")


@cache
def _server_functions() -> dict[str, ServerFunction]:
    sources = {
        path.removeprefix("functions/"): text for path, text in _files().items() if path.startswith("functions/")
    }
    return {name: read_bindings(name, source) for name, source in sources.items()}


def server_function(name: str) -> ServerFunction:
    """Return the arrow *name*. Raises KeyError if there is none."""
    return _server_functions()[name]


#: The names of all arrows.
FUNCTION_NAMES = tuple(_server_functions())


def assemble(instead: Mapping[str, str] | None = None) -> str:
    """Return the text of all modules, with comments. *instead*: path of a Lua file -> another text, for tests."""
    texts, lua_files = generated.generated_modules(), {**_files(), **(instead or {})}
    names = dict.fromkeys([*texts, "functions"])
    parts = [f"do -- generated: {name}\n{text}end\n" for name, text in texts.items()]
    for path, text in lua_files.items():
        header = _HEADER.match(text)
        if header is None:
            raise ValueError(f"{path}.lua must begin with its name: -- name: what it is about")
        if not path.startswith("functions/"):
            names[header[1]] = None
        parts.append(f"do -- {path}\n{text}end\n")
    return _BEGINNING + "".join(f"local {name} = {{}}\n" for name in names) + "".join(parts) + _registry(lua_files)


def _registry(lua_files: Mapping[str, str]) -> str:
    """Return what enters each rule, a module with a MARK, into the registry, with all hooks."""
    hooks = _HOOK.findall(lua_files["jobs/default_hooks"])
    rules = [name for text in lua_files.values() for name in _MARK.findall(text)]
    lines = [f"{rule}.{hook} = {rule}.{hook} or default_hooks.{hook}\n" for rule in rules for hook in hooks]
    return "".join(
        [
            "do -- registry\n",
            *lines,
            *(f"hooks.by_mark[{rule}.MARK] = {rule}\n" for rule in rules),
            *(f"hooks.is_mark[protocol.{name}] = true\n" for name in MARKS),
            "end\n",
        ]
    )


#: Arrows that a server whose memory is full may refuse: they bring jobs. It runs all others.
BRING_JOBS = ("publish", "fire_recurring")

#: Arrows that do without a look at the caller's rights: the one of producers, and those that a worker calls for each
#: task. All others begin with a command that only workers may call: else one that a producer calls would fail half-way.
OPEN = ("publish", "release", "ack")

_COMMENT_LINE = re.compile(r"^ *--.*$", re.MULTILINE)

_AS_FUNCTIONS = """\
local function register(server, name, flags, is_open)
    local arrow = functions[name]
    server.register_function({{
        function_name = "{name}_" .. name,
        callback = function(KEYS, ARGV)
            call.begin(KEYS[1])
            if not is_open then
                call.refuse_producers()
            end
            return arrow(ARGV)
        end,
        flags = flags,
    }})
end
local server = its_server()
server.register_function({{
    function_name = "{name}_idle", callback = last_use.idle_s, flags = {{ "no-writes" }},
}})
"""

_AS_SCRIPT = """\
call.begin(KEYS[1])
local name = table.remove(ARGV, 1)
if not ({{ {open} }})[name] then
    call.refuse_producers()
end
return functions[name](ARGV)
"""


class CallMode(Protocol):
    """A way to call the arrows of a library."""

    missing: str
    """Beginning of the error of a server that does not have what `loading` loads."""

    def command(self, arrow: str, base: str, arguments: Iterable[Argument]) -> tuple[Argument, ...]:
        """Return the command that calls *arrow* on the keys that begin with *base*."""

    def loading(self, arrow: str) -> tuple[str, ...]:
        """Return the command that loads what `command` calls."""


class FunctionCalls:
    """FCALL. The names of functions have the digest of the text: processes of other versions call their own."""

    missing = "Function not found"

    def __init__(self, library: "Library") -> None:
        self.name = library.name
        self.source = library.functions
        self._loading = ("FUNCTION", "LOAD", self.source)

    def command(self, arrow: str, base: str, arguments: Iterable[Argument]) -> tuple[Argument, ...]:
        return ("FCALL", f"{self.name}_{arrow}", 1, base, *arguments)

    def loading(self, arrow: str) -> tuple[str, ...]:
        return self._loading


class ScriptCalls:
    """EVALSHA, with the arrow's name as the first argument."""

    missing = "NOSCRIPT"

    def __init__(self, library: "Library") -> None:
        self._sources = {True: library.script(brings_jobs=True), False: library.script(brings_jobs=False)}
        self._digests = {
            brings: sha1(source.encode(), usedforsecurity=False).hexdigest() for brings, source in self._sources.items()
        }

    def command(self, arrow: str, base: str, arguments: Iterable[Argument]) -> tuple[Argument, ...]:
        return ("EVALSHA", self._digests[arrow in BRING_JOBS], 1, base, arrow, *arguments)

    def loading(self, arrow: str) -> tuple[str, ...]:
        return ("SCRIPT", "LOAD", self._sources[arrow in BRING_JOBS])


@dataclass(frozen=True)
class Library:
    """The library. *modules*: the text of all modules, without what a way to call it adds."""

    modules: str

    @cached_property
    def name(self) -> str:
        """Name of the library in a server, and the beginning of its functions' names."""
        return f"affinity_{SCHEMA}_{sha1(self.modules.encode(), usedforsecurity=False).hexdigest()[:12]}"

    @cached_property
    def functions(self) -> str:
        """The text for FUNCTION LOAD."""
        flags = {name: "" if name in BRING_JOBS else '"allow-oom"' for name in FUNCTION_NAMES}
        registered = "".join(
            f'register(server, "{name}", {{ {flag} }}, {str(name in OPEN).lower()})\n' for name, flag in flags.items()
        )
        return f"#!lua name={self.name}\n{self.modules}{_AS_FUNCTIONS.format(name=self.name)}{registered}"

    def script(self, *, brings_jobs: bool) -> str:
        """Return the text for SCRIPT LOAD. *brings_jobs*: whether a server whose memory is full refuses the script."""
        flags = "" if brings_jobs else " flags=allow-oom"
        of_open = ", ".join(f"{name} = true" for name in OPEN)
        return f"#!lua{flags}\n{self.modules}{_AS_SCRIPT.format(open=of_open)}"

    @cached_property
    def by_function(self) -> FunctionCalls:
        return FunctionCalls(self)

    @cached_property
    def by_script(self) -> ScriptCalls:
        return ScriptCalls(self)

    def changed(self, change: Callable[[str], str]) -> "Library":
        """Return the library whose text is what *change* makes of it, for tests."""
        return Library(change(self.modules))


@cache
def load_library() -> Library:
    """Return the library of this version. Its lines are those of `assembled`; comments are left out."""
    return library_of(assemble())


def library_of(text: str) -> Library:
    """Return the library whose text `assembled` returned."""
    return Library(_COMMENT_LINE.sub("", text))


def minify(path: Path) -> None:
    """Write the assembled text into the file *path*, for a linter, and for who looks for the line of an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(Library(assemble()).functions, encoding="utf-8")
