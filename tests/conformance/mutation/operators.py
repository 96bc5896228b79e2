"""Operators that change one place of a Lua file. Each change is a mutant, which some test should notice.

A mutant's key consists of its function, its operator and its statement without spaces and comments, with the change in
brackets. So the key survives moves, renames and reformatting of the file.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import tree_sitter_lua
from tree_sitter import Language, Node, Parser

_PARSER = Parser(Language(tree_sitter_lua.language()))

#: A change: *text* replaces the bytes from *start* to *end* of the source.
Change = tuple[int, int, str]

#: Operator name -> generator of its changes at a node of the syntax tree.
OPERATORS: dict[str, Callable[[Node], Iterator[Change]]] = {}

_SWAPPED_COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_TURNED_COMPARISONS = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "~=", "~=": "=="}
_SWAPPED_ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*"}
_FIRST_AND_LAST = (
    ('"LPUSH"', '"RPUSH"'),
    ('"LPOP"', '"RPOP"'),
    ('"ZPOPMIN"', '"ZPOPMAX"'),
    ('"ZRANGE"', '"ZREVRANGE"'),
    ('"ZRANGEBYSCORE"', '"ZREVRANGEBYSCORE"'),
    ("math.min", "math.max"),
    ("math.floor", "math.ceil"),
)
_SWAPPED_ENDS = {old: new for pair in _FIRST_AND_LAST for old, new in (pair, pair[::-1])}
_SWAPPED_ENDS['"HSETNX"'] = '"HSET"'  # the last value is stored instead of the first

#: Statements that contain other statements. The key of their mutants contains only their head.
_WITH_BODY = {
    "if_statement",
    "elseif_statement",
    "else_statement",
    "for_statement",
    "while_statement",
    "repeat_statement",
    "function_declaration",
}
_STATEMENTS = _WITH_BODY | {"assignment_statement", "variable_declaration", "return_statement", "break_statement"}
_BEFORE_EXPRESSIONS = ("and", "or", "not", "return", "if", "elseif", "while", "until", "in", "then", "do")
_BLOCKS = ("block", "chunk")
_LITERALS = ("string", "number", "true", "false", "table_constructor")

#: An optional argument of a Redis command, such as "NX".
_OPTION = re.compile(r'"[A-Z]{2,}"')

#: Commands with several fields, members or keys: the index of the first, and the number of arguments of each.
_SEVERAL = {'"HSET"': (2, 2), '"HDEL"': (2, 1), '"ZREM"': (2, 1), '"UNLINK"': (1, 1), '"DEL"': (1, 1)}

_WHOLE_NUMBER = re.compile(r'(?P<quote>"?)(?P<number>-?\d+)(?P=quote)')


class Mutant(NamedTuple):
    """A change of the Lua file *file*, a path below ``celery_affinity/lua`` without its suffix."""

    file: str
    function: str
    operator: str
    statement: str
    start: int
    end: int
    text: str

    @property
    def key(self) -> str:
        """The function, the operator and the statement, for the list of survivors."""
        return f"{self.function}: {self.operator}: {self.statement}"

    def applied(self, source: str) -> str:
        """Return *source*, the text of the file, with the change."""
        whole = source.encode()
        return (whole[: self.start] + self.text.encode() + whole[self.end :]).decode()


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Return all mutants of *source*, in order of their places."""
    root = _PARSER.parse(source.encode()).root_node
    if root.has_error:
        raise ValueError(f"{file}.lua cannot be parsed")
    found = [
        Mutant(file, _function_of(node), name, _shown(_statement_of(node), change), *change)
        for node in _nodes(root)
        for name, operator in OPERATORS.items()
        for change in operator(node)
    ]
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.operator, mutant.text))


# -- operators


def _operator(name: str) -> Callable[[Callable[[Node], Iterator[Change]]], Callable[[Node], Iterator[Change]]]:
    def add(function: Callable[[Node], Iterator[Change]]) -> Callable[[Node], Iterator[Change]]:
        OPERATORS[name] = function
        return function

    return add


@_operator("drop a Redis write")
def _drop_write(node: Node) -> Iterator[Change]:
    """Drop a command whose reply is not used."""
    if _is_statement(node) and node.type == "function_call" and _is_command(node):
        yield _replaced(node, "")


@_operator("drop a call")
def _drop_call(node: Node) -> Iterator[Change]:
    if _is_statement(node) and node.type == "function_call" and not _is_command(node):
        yield _replaced(node, "")


@_operator("drop an assignment")
def _drop_assignment(node: Node) -> Iterator[Change]:
    """Drop an assignment to an existing variable or field, alone in its statement or one of several."""
    if node.type != "assignment_statement" or not _is_statement(node):
        return
    names, values = (_parts(part) for part in _parts(node))
    if len(names) == 1 or len(names) != len(values):
        yield _replaced(node, "")
        return
    for dropped in range(len(names)):
        left = [", ".join(_text(part) for i, part in enumerate(parts) if i != dropped) for parts in (names, values)]
        yield _replaced(node, " = ".join(left))


@_operator("drop an exit")
def _drop_exit(node: Node) -> Iterator[Change]:
    """Continue where a function returned early, or a loop ended."""
    around = node.parent.parent if node.parent else None
    is_early = node.type == "return_statement" and around is not None and "function" not in around.type
    if is_early or node.type == "break_statement":
        yield _replaced(node, "")


@_operator("negate a condition")
def _negate(node: Node) -> Iterator[Change]:
    condition = node.child_by_field_name("condition")
    if condition:
        yield _replaced(condition, f"not ({_text(condition)})")


@_operator("fix a condition")
def _fix_condition(node: Node) -> Iterator[Change]:
    """Make a condition always true or always false. A loop then ends after at most one round."""
    condition = node.child_by_field_name("condition")
    if condition:
        for text in {"while_statement": ("false",), "repeat_statement": ("true",)}.get(node.type, ("true", "false")):
            if text != _text(condition):
                yield _replaced(condition, text)


@_operator("drop an operand")
def _drop_operand(node: Node) -> Iterator[Change]:
    """Drop one operand of `and`, `or`, a sum or a product: each operand of `a and b and c`, one at a time.

    In `a and b or c`, b is not dropped, because a may have another type.
    """
    if _binary(node) in ("and", "or", "+", "-", "*", "/") and not _is_next_place(node):
        left, right = _parts(node)
        is_chosen = _binary(node) == "and" and node.parent and _binary(node.parent) == "or" and _is_left(node)
        if _binary(right) != _binary(node) and not is_chosen:
            yield _replaced(node, _text(left))
        if _binary(left) != _binary(node):
            yield _replaced(node, _text(right))


@_operator("drop a not")
def _drop_not(node: Node) -> Iterator[Change]:
    if node.type == "unary_expression" and node.children[0].type == "not":
        yield _replaced(node, _text(_parts(node)[0]))


@_operator("swap < and <=")
def _swap_bounds(node: Node) -> Iterator[Change]:
    if _binary(node) in _SWAPPED_COMPARISONS:
        yield _replaced(_sign(node), _SWAPPED_COMPARISONS[_binary(node)])


@_operator("turn a comparison")
def _turn_comparison(node: Node) -> Iterator[Change]:
    """Reverse a comparison within a condition; a comparison that is the whole condition gets negated instead."""
    if _binary(node) in _TURNED_COMPARISONS and not _is_condition(node):
        yield _replaced(_sign(node), _TURNED_COMPARISONS[_binary(node)])


@_operator("swap + and -")
def _swap_arithmetic(node: Node) -> Iterator[Change]:
    if _binary(node) in _SWAPPED_ARITHMETIC and not _is_next_place(node):
        yield _replaced(_sign(node), _SWAPPED_ARITHMETIC[_binary(node)])


@_operator("shift a number")
def _shift_number(node: Node) -> Iterator[Change]:
    """Add one to a whole number, or to a string with a number."""
    found = _WHOLE_NUMBER.fullmatch(_text(node)) if node.type in ("number", "string") else None
    if found:
        yield _replaced(node, f"{found['quote']}{int(found['number']) + 1}{found['quote']}")


@_operator("flip true and false")
def _flip(node: Node) -> Iterator[Change]:
    if node.type in ("true", "false"):
        yield _replaced(node, "false" if node.type == "true" else "true")


@_operator("swap first and last")
def _swap_ends(node: Node) -> Iterator[Change]:
    """Take the other end of a list, a sorted set or two numbers."""
    if node.type in ("string", "dot_index_expression") and _text(node) in _SWAPPED_ENDS:
        yield _replaced(node, _SWAPPED_ENDS[_text(node)])
    elif node.type == "bracket_index_expression":
        table, place = _parts(node)
        if _text(place) == "1" and table.type == "identifier":
            yield _replaced(place, f"#{_text(table)}")
        elif _text(place) == f"#{_text(table)}":
            yield _replaced(place, "1")


@_operator("drop an argument")
def _drop_argument(node: Node) -> Iterator[Change]:
    """Drop the last argument of a call if it is a literal, or an optional argument of a Redis command.

    Optional are options, and each but one of several fields, members or keys.
    """
    if node.type != "arguments" or node.parent is None or len(_parts(node)) < 2:
        return
    arguments = _parts(node)
    if not _is_command(node.parent):
        if arguments[-1].type in _LITERALS:
            yield arguments[-2].end_byte, arguments[-1].end_byte, ""
        return
    if _OPTION.fullmatch(_text(arguments[-1])):
        yield arguments[-2].end_byte, arguments[-1].end_byte, ""
    first, step = _SEVERAL.get(_text(arguments[0]), (len(arguments), 1))
    if len(arguments) >= first + 2 * step:
        for place in range(first, len(arguments) - step + 1, step):
            yield arguments[place - 1].end_byte, arguments[place + step - 1].end_byte, ""


@_operator("drop a field")
def _drop_field(node: Node) -> Iterator[Change]:
    """Drop a field of a table or an item of a list, except a nil that only holds a place."""
    if node.type == "field" and _text(node) != "nil":
        after = node.next_sibling
        end = after.end_byte if after and after.type == "," else node.end_byte
        yield node.start_byte, end, ""


@_operator("drop min, max")
def _drop_bound(node: Node) -> Iterator[Change]:
    """Use one of the numbers whose minimum or maximum a function takes."""
    if node.type == "function_call" and _text(_parts(node)[0]) in ("math.min", "math.max"):
        for argument in _parts(_parts(node)[1]):
            yield _replaced(node, _text(argument))


@_operator("empty a text")
def _empty_text(node: Node) -> Iterator[Change]:
    """Empty a string that is compared, joined, stored or returned. Elsewhere it is a name, which must be valid."""
    if node.type != "string" or _text(node) == '""' or node.parent is None:
        return
    if node.parent.type in ("binary_expression", "expression_list") and not _WHOLE_NUMBER.fullmatch(_text(node)):
        yield _replaced(node, '""')


# -- syntax


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.named_children:
        if child.type != "comment":
            yield from _nodes(child)


def _parts(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type != "comment"]


def _text(node: Node) -> str:
    text = node.text
    return text.decode() if text else ""


def _replaced(node: Node, text: str) -> Change:
    return node.start_byte, node.end_byte, text


def _sign(node: Node) -> Node:
    return next(child for child in node.children if not child.is_named)


def _binary(node: Node) -> str:
    return _sign(node).type if node.type == "binary_expression" else ""


def _is_next_place(node: Node) -> bool:
    """Return True if *node* is the next free index of a list, ``#list + 1``."""
    return _text(_parts(node)[0]).startswith("#") and _text(node).endswith("+ 1")


def _is_left(node: Node) -> bool:
    return node.parent is not None and _parts(node.parent)[0] == node


def _is_command(call: Node) -> bool:
    return _text(_parts(call)[0]) in ("redis.call", "redis.pcall")


def _is_statement(node: Node) -> bool:
    if node.type in _STATEMENTS:
        return node.parent is None or node.parent.type != "variable_declaration"
    return node.type == "function_call" and node.parent is not None and node.parent.type in _BLOCKS


def _is_condition(node: Node) -> bool:
    return node.parent is not None and node.parent.child_by_field_name("condition") == node


def _statement_of(node: Node) -> Node:
    while not _is_statement(node) and node.parent:
        node = node.parent
    return node


def _function_of(node: Node) -> str:
    """Return the name of the outermost named function, or "" at the top of a file."""
    name = ""
    at: Node | None = node
    while at:
        own = at.child_by_field_name("name") if at.type == "function_declaration" else None
        name = _text(own) if own else name
        at = at.parent
    return name


# -- keys


def _tokens(node: Node) -> Iterator[Node]:
    if node.type == "comment":
        return
    if node.type == "string" or not node.children:
        yield node
        return
    for child in node.children:
        yield from _tokens(child)


@cache
def _words_of(text: str) -> str:
    """Return *text*, a part of Lua, in the form used in keys."""
    for before in ("return ", ""):  # a single expression is not valid Lua
        root = _PARSER.parse(f"{before}{text}".encode()).root_node
        if not root.has_error:
            return _joined([_text(token) for token in _tokens(root) if token.start_byte >= len(before)])
    return text  # an operator


def _shown(statement: Node, change: Change) -> str:
    start, end, new = change
    tokens = [token for token in _head(statement) if _text(token)]
    before = [_text(token) for token in tokens if token.end_byte <= start]
    old = [_text(token) for token in tokens if start <= token.start_byte and token.end_byte <= end]
    after = [_text(token) for token in tokens if token.start_byte >= end]
    return _joined([*before, f"[{_joined(old)} -> {_words_of(new)}]".replace(" ]", "]"), *after])


def _head(statement: Node) -> Iterator[Node]:
    """Yield the tokens of a statement, without the tokens of the statements in it."""
    if statement.type not in _WITH_BODY:
        yield from _tokens(statement)
        return
    for child in statement.children:
        if child.type not in (*_BLOCKS, "elseif_statement", "else_statement", "end"):
            yield from _tokens(child)


def _joined(tokens: list[str]) -> str:
    text, last = "", ""
    for token in tokens:
        is_close = token in (",", ")", "]", ".", ":", ";") or last in ("(", "[", ".", ":", "#", "")
        is_called = token in ("(", "[") and re.search(r"[\w)\]]$", last) and last not in _BEFORE_EXPRESSIONS
        text += token if is_close or is_called else f" {token}"
        last = token
    return text
