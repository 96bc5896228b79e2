"""Moves into a block of a script the functions that only this block uses.

A part named by ``-- @deferred`` at the beginning of a block is defined when that block runs. So is each function of
other parts that nothing but the block uses. Calls that do not enter the block do not pay for either.
"""

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Lines around a deferred part; a number follows the first: the indentation of the line that opens the block.
_BEGIN, _END = "-- deferred in ", "-- to here\n"

#: A function of a part, ``function lanes.add(...)`` or ``local function find(...)``, to the ``end`` that begins a
#: line. A function that contains a deferred part does not match.
_BODY = rf".*\n(?:(?!end$|{_BEGIN}).*\n)*end\n"
FUNCTION = re.compile(
    rf"^(?:function (?P<part>\w+)\.(?P<name>\w+)|local function (?P<own>\w+))\({_BODY}",
    re.MULTILINE,
)
NAME = re.compile(r"(?<![\w.])\w+(?:\.\w+)?")
COMMENT = re.compile(r"--.*")


def name_of(function: re.Match[str]) -> str:
    """Return the name of a function that `FUNCTION` found: ``lanes.add``, or ``find``."""
    return function["own"] or f"{function['part']}.{function['name']}"


def deferred(source: str, opens: str) -> str:
    """Return *source*, a part, marked as belonging to the block that the line *opens* begins."""
    return f"{_BEGIN}{_indentation(opens)}\n{source}{_END}"


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


@dataclass(eq=False)
class _Block:
    """A block with deferred parts, from the first of them to the end of the block; the whole script has no *parent*."""

    parent: "_Block | None"
    indentation: int
    start: int
    end: int = 0
    in_a_part: bool = True

    def way(self) -> list["_Block"]:
        """Return the blocks around this one, the whole script first, then this one."""
        return [*(self.parent.way() if self.parent else ()), self]


def _blocks(source: str) -> list[_Block]:
    """Return the whole script, then each of its blocks that has deferred parts."""
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


def with_blocks_own(source: str) -> str:
    """Return *source* with the functions that one block alone uses, or blocks in it, moved to the block's beginning."""
    blocks = _blocks(source)

    def block_at(at: int) -> _Block:
        return max((block for block in blocks if block.start <= at < block.end), key=lambda block: block.start)

    found = list(FUNCTION.finditer(source))
    times = Counter(name_of(each) for each in found)
    functions = {
        name_of(each): each for each in found if times[name_of(each)] == 1
    }  # a name of two functions does not say which is meant
    written_in = {name: block_at(each.start()) for name, each in functions.items()}
    users = _users(source, functions)
    belongs_to = dict(written_in)
    goes_on = True
    while goes_on:
        before = dict(belongs_to)
        for name in functions:
            common = _common([before[user] if isinstance(user, str) else block_at(user) for user in users[name]])
            if written_in[name] in common.way():
                belongs_to[name] = common
        goes_on = belongs_to != before
    moves = {name: block for name, block in belongs_to.items() if block is not written_in[name]}
    return _moved(source, {functions[name]: block.start for name, block in moves.items()})


def _users(source: str, functions: Mapping[str, re.Match[str]]) -> dict[str, list[str | int]]:
    """Return the users of each of *functions*: names of others, and positions in the rest of *source*."""
    code = COMMENT.sub(lambda comment: " " * len(comment.group()), source)
    owners = sorted((each.start(), each.end(), name) for name, each in functions.items())
    users: dict[str, list[str | int]] = defaultdict(list)
    for use in NAME.finditer(code):
        if use.group() in functions:
            nth = bisect(owners, (use.start(), len(source))) - 1
            _, end, owner = owners[nth] if nth >= 0 else (0, 0, "")
            users[use.group()].append(owner if use.start() < end else use.start())
    return {name: [user for user in each if user != name] for name, each in users.items()}


def _common(blocks: Sequence[_Block]) -> _Block:
    """Return the innermost block that contains all of *blocks*."""
    common = blocks[0].way()
    for block in blocks[1:]:
        common = [each for each, other in zip(common, block.way(), strict=False) if each is other]
    return common[-1]


def _moved(source: str, functions: Mapping[re.Match[str], int]) -> str:
    """Return *source* with each of *functions* moved to the position beside it."""
    at_its_place: dict[int, str] = defaultdict(str)
    for each, place in functions.items():
        at_its_place[place] += each.group()
    changes = [(place, place, text) for place, text in at_its_place.items()]
    changes += [(each.start(), each.end(), "") for each in functions]
    pieces, end = [], 0
    for start, stop, text in sorted(changes):
        pieces += [source[end:start], text]
        end = stop
    return "".join(pieces) + source[end:]
