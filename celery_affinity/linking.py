"""Makes a script cheap to begin: a server runs its text from the first line on at each call, definitions included.

For the calls that scripts make, defining what is written as it reads best would cost as much again as the calls
themselves. So a linked script has no function that it does not use, what only a block uses that most calls do without
is defined in that block, the functions of its shared parts are locals (a field of a table costs three times as much to
define), and keys are spelled where they are used.
"""

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import keys

#: What stands around a deferred part; the number says how far the line is indented that opens its block.
_BEGIN, _END = "-- deferred in ", "-- to here\n"

#: A function of a shared part, ``function lanes.add(...)``, to the ``end`` at the beginning of a line, with what is
#: said of it above. One with a deferred part is none of them.
_BODY = rf".*\n(?:(?!end$|{_BEGIN}).*\n)*end\n"
_FUNCTION = re.compile(
    rf"(?:^--(?! deferred| to here).*\n)*^function (?P<part>\w+)\.(?P<name>\w+)\({_BODY}|"
    rf"(?:^--(?! deferred| to here).*\n)*^local function (?P<own>\w+)\({_BODY}",
    re.MULTILINE,
)
_FIELD = re.compile(r"(?<![\w.])(?P<part>\w+)\.(?P<name>\w+)")
_WORD = re.compile(r"(?<![\w.])\w+")
_PART = re.compile(r"^local (?P<part>\w+) = \{.*\}.*\n", re.MULTILINE)
_NAME = re.compile(r"(?<![\w.])\w+(?:\.\w+)?")
_COMMENT = re.compile(r"--.*")
_KEY = re.compile(r"\bkey\.(\w+)")


def linked(source: str) -> str:
    """Return a script that does the same as *source*, all of its parts, and has less to define."""
    return _with_locals(_with_keys_spelled(_with_blocks_own(_without_unused(source))))


def deferred(source: str, opens: str) -> str:
    """Return *source*, a part, marked as one of the block that the line *opens* opens."""
    return f"{_BEGIN}{_indentation(opens)}\n{source}{_END}"


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _without_unused(source: str) -> str:
    """Return *source* without functions that nothing else calls, directly or through others."""
    functions: dict[str, str] = {}
    for found in _FUNCTION.finditer(source):  # several parts may have a function of their own under one name
        functions[_name(found)] = functions.get(_name(found), "") + found.group()
    wanted = _names(_FUNCTION.sub("", source)) & functions.keys()
    used: set[str] = set()
    while wanted:
        used |= wanted
        wanted = (set().union(*(_names(functions[name]) for name in wanted)) & functions.keys()) - used
    return _FUNCTION.sub(lambda found: found.group() if _name(found) in used else "", source)


def _name(found: re.Match[str]) -> str:
    return found["own"] or f"{found['part']}.{found['name']}"


def _names(source: str) -> set[str]:
    return set(_NAME.findall(_COMMENT.sub("", source)))


@dataclass(eq=False)
class _Block:
    """A block with deferred parts: from the first of them to its end; the whole script has no *parent*."""

    parent: "_Block | None"
    indentation: int
    start: int
    end: int = 0
    in_a_part: bool = True

    def way(self) -> list["_Block"]:
        """Return what it is in, the whole script first, and itself."""
        return [*(self.parent.way() if self.parent else ()), self]


def _blocks(source: str) -> list[_Block]:
    """Return the whole script, and each block of it that has deferred parts."""
    blocks = [_Block(None, -1, 0, len(source))]
    innermost, at, was_end = blocks[0], 0, False
    for line in source.splitlines(keepends=True):
        if line.startswith(_BEGIN):
            if was_end:
                innermost.in_a_part = True
            else:
                innermost = _Block(innermost, int(line.removeprefix(_BEGIN)), at + len(line))
                blocks.append(innermost)
        elif line == _END:
            innermost.in_a_part = False
        elif not line.isspace():
            while not innermost.in_a_part and _indentation(line) <= innermost.indentation:
                assert innermost.parent is not None, "nothing is indented less than the whole"
                innermost.end, innermost = at, innermost.parent
        at, was_end = at + len(line), line == _END
    return blocks


def _with_blocks_own(source: str) -> str:
    """Return *source* with the functions that only one block uses, or what is in it, at the beginning of that block."""
    blocks = _blocks(source)

    def block_at(at: int) -> _Block:
        return max((block for block in blocks if block.start <= at < block.end), key=lambda block: block.start)

    found = list(_FUNCTION.finditer(source))
    times = Counter(_name(each) for each in found)
    functions = {_name(each): each for each in found if times[_name(each)] == 1}  # of two nobody knows who is meant
    written_in = {name: block_at(each.start()) for name, each in functions.items()}
    users = _users(source, functions)
    belongs_to, before = dict(written_in), {}
    while belongs_to != before:
        before = dict(belongs_to)
        for name in functions:
            common = _common([before[user] if isinstance(user, str) else block_at(user) for user in users[name]])
            if written_in[name] in common.way():
                belongs_to[name] = common
    return _moved(source, {functions[name]: block.start for name, block in belongs_to.items()
                           if block is not written_in[name]})


def _users(source: str, functions: Mapping[str, re.Match[str]]) -> dict[str, list[str | int]]:
    """Return who uses each of *functions*: another one, or a place in the rest of *source*."""
    code = _COMMENT.sub(lambda comment: " " * len(comment.group()), source)
    owners = sorted((each.start(), each.end(), name) for name, each in functions.items())
    users: dict[str, list[str | int]] = defaultdict(list)
    for use in _NAME.finditer(code):
        if use.group() in functions:
            nth = bisect(owners, (use.start(), len(source))) - 1
            _, end, owner = owners[nth] if nth >= 0 else (0, 0, "")
            users[use.group()].append(owner if use.start() < end else use.start())
    return {name: [user for user in each if user != name] for name, each in users.items()}


def _common(blocks: Sequence[_Block]) -> _Block:
    """Return the innermost block that all of *blocks* are in."""
    return [all_the_same[0] for all_the_same in zip(*(block.way() for block in blocks), strict=False)
            if len(set(all_the_same)) == 1][-1]


def _moved(source: str, functions: Mapping[re.Match[str], int]) -> str:
    """Return *source* with each of *functions* at the place that it is given."""
    cuts = [(each.start(), each.end(), "") for each in functions]
    for place in set(functions.values()):
        cuts.append((place, place, "".join(each.group() for each in functions if functions[each] == place)))
    pieces, end = [], 0
    for start, stop, text in sorted(cuts):
        pieces += [source[end:start], text]
        end = stop
    return "".join(pieces) + source[end:]


def _with_keys_spelled(source: str) -> str:
    """Return *source* with ``key.job(id)`` written out."""
    pieces, end = [], 0
    for found in _KEY.finditer(source):
        if found.start() < end:
            raise ValueError(f"a key within the parts of another: {source[found.start() :][:40]!r}")
        arguments, after = _arguments(source, found.end())
        pieces += [source[end : found.start()], keys.lua_expression(found[1], arguments)]
        end = after
    return "".join(pieces) + source[end:]


def _arguments(source: str, start: int) -> tuple[list[str], int]:
    """Return the arguments of a call whose parenthesis is at *start*, and where it ends; none if there is none."""
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
    raise ValueError(f"a parenthesis that does not end: {source[start:][:40]!r}")


def _with_locals(source: str) -> str:
    """Return *source* with the functions of its parts as locals: ``lanes.add`` is ``lanes_add``."""
    functions: dict[str, list[str]] = {}
    for found in _FUNCTION.finditer(source):
        if found["part"]:
            functions.setdefault(found["part"], []).append(f"{found['part']}_{found['name']}")

    def local(field: re.Match[str]) -> str:
        name = f"{field['part']}_{field['name']}"
        return name if name in functions.get(field["part"], ()) else field.group()

    def declared(table: re.Match[str]) -> str:
        locals_ = functions.get(table["part"], [])
        return (table.group() if uses[table["part"]] > 1 else "") + (f"local {', '.join(locals_)}\n" if locals_ else "")

    source = _FIELD.sub(local, source)
    uses = Counter(_WORD.findall(_COMMENT.sub("", source)))
    return _PART.sub(declared, source)
