"""Two ways to call the arrows of the library.

A server keeps the library as functions (`ByFunction`). The text defines everything once, when it is loaded. One that
refuses functions runs the text as a script (`ByScript`), which defines everything anew in each call.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha1
from pathlib import Path
from typing import Protocol

from ..rules.redis_keys import SCHEMA
from .library import ARROWS, Argument, assembled

#: Arrows that a server whose memory is full may refuse: they bring jobs. It runs all others.
BRING_JOBS = ("publish", "fire")

#: Arrows that do without a look at the caller's rights: the one of producers, and those that a worker calls for each
#: task. All others begin with a command that only workers may call: else one that a producer calls would fail half-way.
OPEN = ("publish", "release", "ack")

_COMMENT_LINE = re.compile(r"^ *--.*$", re.MULTILINE)

_AS_FUNCTIONS = """\
local function register(server, name, flags, is_open)
    local arrow = arrows[name]
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
    function_name = "{name}_idle", callback = use.idle_s, flags = {{ "no-writes" }},
}})
"""

_AS_SCRIPT = """\
call.begin(KEYS[1])
local name = table.remove(ARGV, 1)
if not ({{ {open} }})[name] then
    call.refuse_producers()
end
return arrows[name](ARGV)
"""


class Way(Protocol):
    """A way to call the arrows of a library."""

    missing: str
    """Beginning of the error of a server that does not have what `loading` loads."""

    def command(self, arrow: str, base: str, arguments: Iterable[Argument]) -> tuple[Argument, ...]:
        """Return the command that calls *arrow* on the keys that begin with *base*."""

    def loading(self, arrow: str) -> tuple[str, ...]:
        """Return the command that loads what `command` calls."""


class ByFunction:
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


class ByScript:
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
        flags = {name: "" if name in BRING_JOBS else '"allow-oom"' for name in ARROWS}
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
    def by_function(self) -> ByFunction:
        return ByFunction(self)

    @cached_property
    def by_script(self) -> ByScript:
        return ByScript(self)

    def changed(self, change: Callable[[str], str]) -> "Library":
        """Return the library whose text is what *change* makes of it, for tests."""
        return Library(change(self.modules))


@cache
def library() -> Library:
    """Return the library of this version. Its lines are those of `assembled`; comments are left out."""
    return made_of(assembled())


def made_of(text: str) -> Library:
    """Return the library whose text `assembled` returned."""
    return Library(_COMMENT_LINE.sub("", text))


def write(path: Path) -> None:
    """Write the assembled text into the file *path*, for a linter, and for who looks for the line of an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(Library(assembled()).functions, encoding="utf-8")
