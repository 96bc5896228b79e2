"""The commands that a server function can call, found in the text of the Lua functions that it reaches."""

import re
from functools import cache

from celery_affinity.lua.library import assemble
from celery_affinity.schema.keys import KEYS

_FILE = re.compile(r"^do -- (.+)\n(?s:(.*?))^end\n(?=do -- |\Z)", re.MULTILINE)
#: A function in one line, or in several.
_FUNCTION = re.compile(
    r"^function ([\w.]+)\(.*\) .*\bend\b.*$|^(?:local )?function ([\w.]+)\((?s:.*?)^end$", re.MULTILINE
)
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)?")
#: ``rule.waits`` or ``hooks.of(id).waits``.
_HOOK = re.compile(r"(?:\brule|hooks\.of\([\w.\[\]]+\))\.(\w+)")
#: A function that reads the sorted set in its argument.
_READS_WHAT_IT_GETS = re.compile(r"workers\.tick_in_time\((.*)")
_CALL = re.compile(r"redis\.p?call\(\s*(?:.*?)\"([A-Z]+)\"(.*)")


@cache
def needs(arrow: str) -> set[tuple[str, str]]:
    """Return the commands of *arrow*: (command, the constant prefix of its key, or "" if the key is not named)."""
    commands = set()
    for text in _reached(f"functions.{arrow}"):
        for command, rest in [*_CALL.findall(text), *(("ZRANGE", each) for each in _READS_WHAT_IT_GETS.findall(text))]:
            for name in re.findall(r"\bkey\.(\w+)", rest) or [""]:
                commands.add((command.lower(), KEYS[name][0].split("%s")[0] if name in KEYS else ""))
    return commands


def _reached(function: str) -> list[str]:
    functions = _functions()
    wanted, seen = [function], {"call.begin", function}
    texts = [functions["call.begin"][1]]
    while wanted:
        file, text = functions[wanted.pop()]
        texts.append(text)
        hooks = [f"{rule}.{hook}" for hook in _HOOK.findall(text) for rule in _rules()]
        for name in [*_NAME.findall(text), *hooks]:
            for candidate in (name, f"{file}:{name}"):
                if candidate in functions and candidate not in seen:
                    seen.add(candidate)
                    wanted.append(candidate)
    return texts


@cache
def _functions() -> dict[str, tuple[str, str]]:
    """Map ``lanes.add``, or ``placing/lanes:find`` for a local function, to the file and text of the function."""
    functions = {}
    for file, text in _FILE.findall(re.sub(r"--(?! (generated|\w+/)).*", "", assemble())):
        for each in _FUNCTION.finditer(text):
            name = each[1] or each[2]
            is_local = each[0].startswith("local") or name.partition(".")[0] not in _modules()
            functions[f"{file}:{name}" if is_local else name] = (file, each[0])
    return functions


@cache
def _rules() -> list[str]:
    """Return the modules with rule hooks; a server function calls the hooks of the job's rule."""
    return ["default_hooks", *re.findall(r"^hooks\.by_mark\[(\w+)\.MARK\]", assemble(), re.MULTILINE)]


@cache
def _modules() -> set[str]:
    return set(re.findall(r"^local (\w+) = \{\}$", assemble().partition("\ndo -- ")[0], re.MULTILINE))
