"""The Lua library: one text of all Lua files, the signatures of its server functions, and two ways to call them.

The functions of a file belong to one table or to a few, such as ``lanes`` in ``function lanes.add``. All tables are
declared before the first file, so the order of files does not matter. A table with a MARK is a rule (`jobs/hooks.lua`)
and is registered.

The Lua text of a server function is the only declaration of its arguments and its reply. The lines
``local name = ARGV[n]`` name the arguments, and ``-- Returns {name, ...}`` in the comment before the function names the
values of the reply (`ServerFunction`).

A server loads the library as functions (`FunctionCalls`), which runs the definitions once. A server that rejects
functions runs the text as a script (`ScriptCalls`), which repeats the definitions in each invocation.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from ..schema.keys import SCHEMA
from ..schema.rules_codec import MARKS
from . import generated

Argument = str | bytes | int

_HEADER = re.compile(r"-- \w+: ")
_TABLE = re.compile(r"^(?:function )?(\w+)[.:]\w+(?: = |\()", re.MULTILINE)
_LOCAL_TABLE = re.compile(r"^local (\w+) = \{", re.MULTILINE)
_SERVER_FUNCTION = re.compile(r"^function functions\.(\w+)\(ARGV\)\n(.*?)^end$", re.MULTILINE | re.DOTALL)
_BINDING = re.compile(r"^    local (\w+) = .*?\bARGV\[(\d+)\]", re.MULTILINE)
_HOOK = re.compile(r"^function default_hooks\.(\w+)\(", re.MULTILINE)
_MARK = re.compile(r"^(\w+)\.MARK\b", re.MULTILINE)
_REST = re.compile(r"^    -- ARGV\[(\d+)\.\.\]", re.MULTILINE)
#: The name of a server function and its reply, names and nested lists of names, in the comment before the function.
_REPLY = re.compile(r"^-- (\w+): .*\n(?:--.*\n)*?-- Returns \{((?:[^{}\n]|\{[^{}\n]*\})*)\}", re.MULTILINE)
_REPLY_VALUE = re.compile(r"\{[^{}]*\}|\w[^,{}]*")

# Precedes the modules. Many globals do not exist while a library is loaded, and reading a global costs twice as much as
# reading a local. `call.take_globals` copies them to locals in the first invocation.
_BEGINNING = """\
local function its_server()
    return redis
end
local function its_globals()
    return redis, string, math, table, tonumber, unpack, ipairs, pairs, next
end
local redis, string, math, table, tonumber, unpack, ipairs, pairs, next
"""

# In the text that a server loads, local variables such as `redis_call`, `call_now` and `key_job` replace global
# functions, the state of an invocation, and the functions that most invocations call. Looking these up in their tables
# would cost 5 % of an invocation. Lua allows 200 local variables.
# Table -> its names; "": all.
_GLOBALS = {
    "redis": "call pcall",
    "string": "byte find format gmatch gsub match sub",
    "math": "ceil floor max min",
    "table": "concat insert",
}
_TAKES_GLOBALS = "= its_globals()\n"
_OFTEN_USED = {
    "call": "",
    "claims": "grant payload remove",
    "due_times": "in_field",
    "ends": "on_worker remember",
    "fill": "fill from",
    "free_slots": "count own remaining takes_jobs terms write",
    "head_cache": "first popped",
    "hooks": "is_mark",
    "id_suffix": "has_hint of",
    "job_choice": "begin first",
    "key": "claims held job key_state lane message task worker",
    "key_state": "cache keys_of read",
    "lanes": "checked_job heads only_job pop with_new_head write",
    "prefetch": "request_jobs",
    "queue_heads": "best change of pop read_first_heads write_heads",
    "rules_codec": "keys",
    "settings_in_force": "read read_for_claim",
    "tenants": "shares",
}
_LOCALS = {table: frozenset(names.split()) for table, names in (_GLOBALS | _OFTEN_USED).items()}
_NAME = re.compile(r"(?<![\w.])(\w+)\.(\w+)")
_CONSTANT = re.compile(r'^protocol\.(\w+) = ("[^"\n]*"|\d[\d.e+]*)$', re.MULTILINE)


@dataclass(frozen=True)
class ServerFunction:
    name: str
    #: Names of its arguments.
    names: tuple[str, ...]
    #: True if more values follow the named arguments.
    takes_rest: bool
    #: Names of the values in a reply that is a list. Further values can follow them.
    reply: tuple[str, ...]

    @cached_property
    def _name_set(self) -> frozenset[str]:
        return frozenset(self.names)

    def arguments(self, rest: Iterable[Argument] = (), **values: Argument) -> list[Argument]:
        """Return ARGV for *values*, which must have exactly the names in `names`, followed by *rest*.

        True and False become 1 and 0.
        """
        if values.keys() != self._name_set:
            raise TypeError(f"{self.name} takes {self.names}, got: {tuple(values)}")
        tail = list(rest)
        if tail and not self.takes_rest:
            raise TypeError(f"{self.name} takes nothing after {self.names}, got: {tail}")
        named = (values[name] for name in self.names)
        return [int(value) if isinstance(value, bool) else value for value in named] + tail


def read_bindings(name: str, source: str, reply: tuple[str, ...] = ()) -> ServerFunction:
    """Return the signature of the server function *name* from its body. *reply*: names of the values in the reply."""
    bindings = {int(position): variable for variable, position in _BINDING.findall(source)}
    rest = [int(position) for position in _REST.findall(source)]
    if sorted(bindings) != list(range(1, len(bindings) + 1)) or rest not in ([], [len(bindings) + 1]):
        raise ValueError(f"{name} must bind ARGV[1] to ARGV[n], each once, then say what follows from ARGV[n+1] on")
    return ServerFunction(name, tuple(bindings[position] for position in sorted(bindings)), bool(rest), reply)


@cache
def _files() -> dict[str, str]:
    """Return the text of each Lua file by its path without a suffix, such as ``matching/fill``."""
    return dict(sorted(_read_folder(files(__package__), "")))


def _read_folder(folder: Traversable, path: str) -> Iterable[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _read_folder(entry, f"{path}{entry.name}/")
        elif entry.name.endswith(".lua"):
            yield f"{path}{entry.name.removesuffix('.lua')}", entry.read_text(encoding="utf-8")


@cache
def _server_functions() -> dict[str, ServerFunction]:
    texts = [text for path, text in _files().items() if path.startswith("functions/")]
    bodies = dict(sorted(pair for text in texts for pair in _SERVER_FUNCTION.findall(text)))
    replies = {name: tuple(_REPLY_VALUE.findall(values)) for text in texts for name, values in _REPLY.findall(text)}
    return {name: read_bindings(name, body, replies.get(name, ())) for name, body in bodies.items()}


def server_function(name: str) -> ServerFunction:
    """Return the signature of the server function *name*. Raises KeyError if it does not exist."""
    return _server_functions()[name]


#: A server function and its arguments.
FunctionCall = tuple[ServerFunction, list[Argument]]


def function_call(name: str, rest: Iterable[Argument] = (), /, **values: Argument) -> FunctionCall:
    """Return an invocation of the server function *name*. See `ServerFunction.arguments`."""
    function = server_function(name)
    return function, function.arguments(rest, **values)


#: The names of all server functions.
FUNCTION_NAMES = tuple(_server_functions())


def assemble(instead: Mapping[str, str] | None = None) -> str:
    """Return the text of all modules, with comments. *instead* replaces Lua files, path -> text, for tests."""
    texts, lua_files = generated.generated_modules(), {**_files(), **(instead or {})}
    for path, text in lua_files.items():
        if not _HEADER.match(text):
            raise ValueError(f"{path}.lua must begin with what it is about: -- name: ...")
    tables = dict.fromkeys([*texts, *(name for text in lua_files.values() for name in _tables_of(text))])
    parts = [f"do -- generated: {name}\n{text}end\n" for name, text in texts.items()]
    parts += [f"do -- {path}\n{text}end\n" for path, text in lua_files.items()]
    return _BEGINNING + "".join(f"local {name} = {{}}\n" for name in tables) + "".join(parts) + _registry(lua_files)


def _tables_of(text: str) -> list[str]:
    """Return the tables that a Lua file shares with others, by the functions that it adds to them."""
    local_tables = set(_LOCAL_TABLE.findall(text))
    return [name for name in _TABLE.findall(text) if name not in local_tables]


def _registry(lua_files: Mapping[str, str]) -> str:
    """Return Lua that registers each rule, a table with a MARK, and completes its hooks with the defaults."""
    hooks = _HOOK.findall(lua_files["jobs/hooks"])
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


#: Server functions that add jobs. A server whose memory is full may reject these only.
BRING_JOBS = ("publish", "fire_recurring")

#: Server functions that do not check the caller's rights: `publish`, and the functions that a worker calls per task.
#: All others begin with a command that only workers may call. Otherwise a producer's invocation could fail midway.
OPEN = ("publish", "release", "ack")

_COMMENT_LINE = re.compile(r"^ *--.*$", re.MULTILINE)

_FUNCTIONS_ENDING = """\
local function register(server, name, flags, is_open)
    local called = functions[name]
    server.register_function({{
        function_name = "{name}_" .. name,
        callback = function(KEYS, ARGV)
            call.begin(KEYS[1])
            if not is_open then
                call.refuse_producers()
            end
            local reply = called(ARGV)
            local keys = call.keys
            if keys and keys.shares then
                fair_share.write_changed(keys.shares)
            end
            return reply
        end,
        flags = flags,
    }})
end
local server = its_server()
server.register_function({{
    function_name = "{name}_idle", callback = last_use.idle_s, flags = {{ "no-writes" }},
}})
"""

_SCRIPT_ENDING = """\
call.begin(KEYS[1])
local name = table.remove(ARGV, 1)
if not ({{ {open} }})[name] then
    call.refuse_producers()
end
local reply = functions[name](ARGV)
if call.keys and call.keys.shares then
    fair_share.write_changed(call.keys.shares)
end
return reply
"""


class FunctionCalls:
    """Calls by FCALL. Function names contain the digest of the text, so each version calls its own functions."""

    def __init__(self, library: "Library") -> None:
        self.name = library.name
        self._library = library

    def command(self, function: str, base: str, arguments: Iterable[Argument]) -> tuple[Argument, ...]:
        """Return the command that calls the server function *function* on the keys that begin with *base*."""
        return ("FCALL", f"{self.name}_{function}", 1, base, *arguments)

    def loading(self, function: str) -> tuple[str, ...]:
        """Return the command that loads the functions or the script for `command`."""
        return ("FUNCTION", "LOAD", self._library.functions)


class ScriptCalls:
    """Calls by EVALSHA, with the name of the server function as the first argument."""

    def __init__(self, library: "Library") -> None:
        self._sources = {True: library.script(brings_jobs=True), False: library.script(brings_jobs=False)}
        self._digests = {
            brings: sha1(source.encode(), usedforsecurity=False).hexdigest() for brings, source in self._sources.items()
        }

    def command(self, function: str, base: str, arguments: Iterable[Argument]) -> tuple[Argument, ...]:
        return ("EVALSHA", self._digests[function in BRING_JOBS], 1, base, function, *arguments)

    def loading(self, function: str) -> tuple[str, ...]:
        return ("SCRIPT", "LOAD", self._sources[function in BRING_JOBS])


CallMode = FunctionCalls | ScriptCalls


@dataclass(frozen=True)
class Library:
    #: Text of all modules, without the ending for a call mode.
    modules: str

    def _loaded(self, ending: str) -> str:
        """Return the text of all modules and *ending* that a server loads, with local variables (`_LOCALS`)."""
        constants: dict[str, str] = dict(_CONSTANT.findall(self.modules))
        variables: set[tuple[str, str]] = set()

        def replaced(use: re.Match[str]) -> str:
            table, name = use[1], use[2]
            if table == "protocol":
                return constants.get(name, use[0])
            names = _LOCALS.get(table)
            if names is None or (names and name not in names):
                return use[0]
            variables.add((table, name))
            return f"{table}_{name}"

        text = _CONSTANT.sub("", self.modules).replace("local call = {}\n", "\n", 1) + ending
        text = _NAME.sub(replaced, text)
        declared = "".join(f"local {table}_{name}\n" for table, name in sorted(variables))
        taken = "".join(f"{table}_{name} = {table}.{name}\n" for table, name in sorted(variables) if table in _GLOBALS)
        return declared + text.replace(_TAKES_GLOBALS, _TAKES_GLOBALS + taken, 1)

    @cached_property
    def name(self) -> str:
        """Name of the library on a server, and prefix of its functions' names."""
        text = f"{self.modules}{_GLOBALS}{_OFTEN_USED}"
        return f"affinity_{SCHEMA}_{sha1(text.encode(), usedforsecurity=False).hexdigest()[:12]}"

    @cached_property
    def functions(self) -> str:
        """The text for FUNCTION LOAD."""
        flags = {name: "" if name in BRING_JOBS else '"allow-oom"' for name in FUNCTION_NAMES}
        registered = "".join(
            f'register(server, "{name}", {{ {flag} }}, {str(name in OPEN).lower()})\n' for name, flag in flags.items()
        )
        return f"#!lua name={self.name}\n{self._loaded(_FUNCTIONS_ENDING.format(name=self.name) + registered)}"

    def script(self, *, brings_jobs: bool) -> str:
        """Return the text for SCRIPT LOAD. With *brings_jobs*, a server whose memory is full rejects the script."""
        flags = "" if brings_jobs else " flags=allow-oom"
        of_open = ", ".join(f"{name} = true" for name in OPEN)
        return f"#!lua{flags}\n{self._loaded(_SCRIPT_ENDING.format(open=of_open))}"

    @cached_property
    def by_function(self) -> FunctionCalls:
        return FunctionCalls(self)

    @cached_property
    def by_script(self) -> ScriptCalls:
        return ScriptCalls(self)

    def changed(self, change: Callable[[str], str]) -> "Library":
        """Return a library with the text changed by *change*, for tests."""
        return Library(change(self.modules))


@cache
def load_library() -> Library:
    """Return the library of this version. It has the lines of `assemble`; comment lines are empty."""
    return library_of(assemble())


def library_of(text: str) -> Library:
    """Return the library of a text that `assemble` returned."""
    return Library(_COMMENT_LINE.sub("", text))


def write_library(path: Path) -> None:
    """Write the assembled text into the file *path*, for a linter and for the line numbers of errors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(Library(assemble()).functions, encoding="utf-8")
