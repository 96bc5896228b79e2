"""Makes a script cheap to begin: a server runs its text from the first line on at each call, definitions included.

Defining all functions of a script as they are written would cost as much as the Redis commands that the script calls.
So a linked script has no unused function; a function that only a deferred block uses is defined in that block; the
functions of shared parts are locals (a field of a table costs three times as much to define); and keys, the fields of a
job, the numbers of `protocol` and those that parts name are spelled where they are used: each local of the whole script
costs a call, and some more let Lua's stack grow again at each call, which costs a publish 3 %.
"""

import re
from collections import Counter

from ...rules import job_fields, keys, protocol
from .deferring import COMMENT, FUNCTION, NAME, name_of, with_blocks_own

_FIELD = re.compile(r"(?<![\w.])(?P<part>\w+)\.(?P<name>\w+)")
_WORD = re.compile(r"(?<![\w.])\w+")
_PART = re.compile(r"^local (?P<part>\w+) = \{.*\}.*\n", re.MULTILINE)
_KEY = re.compile(r"\bkey\.(\w+)")
_JOB_FIELDS = re.compile(r"\bjob_fields\.(\w+)")
_NUMBER = re.compile(r"\bprotocol\.(\w+)")
_VALUE = r'(?:\d+|"[^"\\,\n]*")'
_CONSTANTS = re.compile(
    rf"^local (?P<names>[A-Z_]+(?:, [A-Z_]+)*) = (?P<values>{_VALUE}(?:, {_VALUE})*)(?:\s+--.*)?\n", re.MULTILINE
)
#: Lines that are comments, and no marks of deferred parts. They are half of the text: what follows reads it many times.
_COMMENT_LINES = re.compile(r"^ *--(?! deferred in | to here).*\n", re.MULTILINE)
_DECLARED = re.compile(r"^\s*local (\w+(?:, \w+)*)", re.MULTILINE)
_TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"')
#: A comment, a text, or a word that may be a constant and is no field of a table.
_CONSTANT = re.compile(rf"--.*|{_TEXT.pattern}|(?<![\w.])(?P<name>[A-Z_]+)\b(?!\s*=[^=])")


def linked(source: str) -> str:
    """Return a script that does the same as *source*, an assembled one, and has less to define."""
    whole = with_blocks_own(_without_unused(_COMMENT_LINES.sub("", source)))
    return _with_locals(_with_constants_spelled(_with_numbers_spelled(_with_calls_spelled(whole))))


def _without_unused(source: str) -> str:
    """Return *source* without functions that nothing else calls, directly or through others."""
    functions: dict[str, str] = {}
    for found in FUNCTION.finditer(source):  # parts may have local functions of one name
        functions[name_of(found)] = functions.get(name_of(found), "") + found.group()
    wanted = _names(FUNCTION.sub("", source)) & functions.keys()
    used: set[str] = set()
    while wanted:
        used |= wanted
        wanted = (set().union(*(_names(functions[name]) for name in wanted)) & functions.keys()) - used
    return FUNCTION.sub(lambda found: found.group() if name_of(found) in used else "", source)


def _names(source: str) -> set[str]:
    return set(NAME.findall(COMMENT.sub("", source)))


def _with_numbers_spelled(source: str) -> str:
    """Return *source* with figures for ``protocol.MOST_MOVES``."""
    return _NUMBER.sub(lambda found: protocol.lua_number(found[1]), source)


def _with_calls_spelled(source: str) -> str:
    """Return *source* with ``key.job(id)`` and ``job_fields.at(ARGV, 1)`` written out; keys first."""
    for call, spelled in ((_KEY, keys.lua_expression), (_JOB_FIELDS, job_fields.lua_expression)):
        pieces, end = [], 0
        for found in call.finditer(source):
            if found.start() < end:
                raise ValueError(f"a call within an argument of another: {source[found.start() :][:40]!r}")
            arguments, after = _arguments(source, found.end())
            pieces += [source[end : found.start()], spelled(found[1], arguments)]
            end = after
        source = "".join(pieces) + source[end:]
    return source


def _with_constants_spelled(source: str) -> str:
    """Return *source* with 80 for ``MANY``, if a part says ``local MANY = 80``; likewise with a text."""
    values: dict[str, str] = {}
    for found in _CONSTANTS.finditer(source):
        values.update(zip(found["names"].split(", "), found["values"].split(", "), strict=True))
    declared = Counter(name for line in _DECLARED.findall(source) for name in line.split(", "))
    if twice := [name for name in values if declared[name] > 1]:
        raise ValueError(f"more than one local has the name of a constant: {twice}")
    source = _CONSTANTS.sub("", source)
    return _CONSTANT.sub(lambda found: values.get(found["name"], found.group()), source)


def _arguments(source: str, start: int) -> tuple[list[str], int]:
    """Return the arguments of the call whose parenthesis is at *start*, and its end; none without a parenthesis."""
    if source[start] != "(":
        return [], start
    arguments, depth, begin = [], 0, start + 1
    for at in range(start, len(source)):
        depth += (source[at] == "(") - (source[at] == ")")
        if not depth or (depth == 1 and source[at] == ","):
            arguments.append(source[begin:at].strip())
            begin = at + 1
        if not depth:
            return arguments, begin
    raise ValueError(f"a parenthesis that is not closed: {source[start:][:40]!r}")


def _with_locals(source: str) -> str:
    """Return *source* with the functions of its parts as locals: ``lanes.add`` is ``lanes_add``."""
    functions: dict[str, list[str]] = {}
    for found in FUNCTION.finditer(source):
        if found["part"]:
            functions.setdefault(found["part"], []).append(f"{found['part']}_{found['name']}")

    def local(field: re.Match[str]) -> str:
        name = f"{field['part']}_{field['name']}"
        return name if name in functions.get(field["part"], ()) else field.group()

    def declared(table: re.Match[str]) -> str:
        locals_ = functions.get(table["part"], [])
        return (table.group() if uses[table["part"]] > 1 else "") + (f"local {', '.join(locals_)}\n" if locals_ else "")

    source = _FIELD.sub(local, source)
    uses = Counter(_WORD.findall(_TEXT.sub("", COMMENT.sub("", source))))
    return _PART.sub(declared, source)
