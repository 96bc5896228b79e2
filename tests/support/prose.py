"""Count odd turns of phrase per 1,000 words: ``python -m tests.support.prose PATH ...`` lists them.

Reads comments, docstrings and test names of Python, comments of Lua, and Markdown outside of code blocks. The rules are
in `prose_rules.toml`. A rate measures the distance from plain English, not quality. A comment with ``prose: ok`` is
skipped, for a quotation.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

CODE = "CODE"
_RULES = tomllib.loads(Path(__file__).with_name("prose_rules.toml").read_text(encoding="utf-8"))["rule"]
RULES = [(rule, re.compile(rule["pattern"], re.IGNORECASE | re.MULTILINE)) for rule in _RULES]

_SKIPPED_COMMENT = re.compile(r"^#\s*(?:noqa|type:|pragma|fmt:|ruff|!|===|---)|prose: ok", re.IGNORECASE)
_ITEM = re.compile(r"(?:[-*+•]|\d+[.)]|#+|\||>)\s+")
_LUA = re.compile(r"--[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'")
_CLEANED = (
    (re.compile(r"(?::[\w:+-]+:)?``[^`]+``|(?::[\w:+-]+:)?`[^`]+`_{0,2}"), CODE),
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), " "),
    (re.compile(r"\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"<[^>\s]+>"), " "),
    (re.compile(r"https?://\S+"), "URL"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"\1"),
)


class Paragraph(NamedTuple):
    """A paragraph of prose, and the number of its first line."""

    text: str
    line: int
    is_name: bool = False


class Hit(NamedTuple):
    """A match of a rule."""

    line: int
    rule: str
    text: str
    instead: str


@dataclass
class Count:
    """The number of words of a file, or of its test names, and the matches in them."""

    words: int = 0
    hits: list[Hit] = field(default_factory=list)

    def __add__(self, other: "Count") -> "Count":
        return Count(self.words + other.words, self.hits + other.hits)

    @property
    def rate(self) -> float:
        """Matches per 1,000 words."""
        return 1000 * len(self.hits) / self.words if self.words else 0.0


def _paragraphs(lines: list[tuple[int, str]]) -> Iterator[Paragraph]:
    """Yield the paragraphs of numbered lines. A list item, a heading and a table row are separate paragraphs."""
    text, first = "", 0
    for number, raw in lines:
        line = raw
        for pattern, replacement in _CLEANED:
            line = pattern.sub(replacement, line)
        line = line.strip()
        if text and (not line or _ITEM.match(line)):
            yield Paragraph(text, first)
            text = ""
        line = re.sub(r"^(?:[-*+•]|\d+[.)]|#+|>)\s+", "", line)
        line = line.replace("|", " . ") if line.startswith("|") else line
        first = first if text else number
        text = f"{text} {line}".strip()
    if text:
        yield Paragraph(text, first)


def _comments(comments: list[tuple[int, str, bool]]) -> Iterator[Paragraph]:
    """Yield the paragraphs of comments: line number, text, and True if the line has nothing else."""
    run: list[tuple[int, str]] = []
    for number, text, is_alone in comments:
        if run and (number != run[-1][0] + 1 or not is_alone):
            yield from _paragraphs(run)
            run = []
        run.append((number, text))
    yield from _paragraphs(run)


def _of_python(source: str) -> Iterator[Paragraph]:
    yield from _comments(
        [
            (token.start[0], re.sub(r"^#[:!]?\s?|^#+", "", token.string), not token.line[: token.start[1]].strip())
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT and not _SKIPPED_COMMENT.search(token.string)
        ]
    )
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield from _paragraphs(_docstring_lines(text, node.body[0].lineno))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and re.match(r"test_\w+_\w+_\w+", node.name):
            yield Paragraph(node.name[5:].replace("_", " "), node.lineno, is_name=True)


def _docstring_lines(text: str, first: int) -> list[tuple[int, str]]:
    """Return the numbered lines of a docstring. Doctests and code after ``::`` are left out."""
    lines, code_indent = [], None
    for number, line in enumerate(text.split("\n"), first):
        stripped, indent = line.strip(), len(line) - len(line.lstrip())
        if code_indent is not None and stripped and indent <= code_indent:
            code_indent = None
        is_code = code_indent is not None or stripped.startswith((">>>", "...", "$ ", ".. "))
        if code_indent is None and stripped.endswith("::"):
            code_indent = indent
        lines.append((number, "" if is_code else stripped))
    return lines


def _of_lua(source: str) -> Iterator[Paragraph]:
    comments = []
    for match in _LUA.finditer(source):
        if match[0].startswith("--") and "prose: ok" not in match[0]:
            start = source.rfind("\n", 0, match.start()) + 1
            number = source.count("\n", 0, match.start()) + 1
            comments.append((number, re.sub(r"^-+\s*", "", match[0]), not source[start : match.start()].strip()))
    yield from _comments(comments)


def _of_markdown(source: str) -> Iterator[Paragraph]:
    source = re.sub(r"<!--.*?-->", lambda match: re.sub(r"[^\n]", " ", match[0]), source, flags=re.DOTALL)
    lines, fence = [], None
    for number, line in enumerate(source.split("\n"), 1):
        mark = re.match(r"\s*(`{3,}|~{3,})", line)
        if mark and fence in (None, mark[1][0]):
            fence = mark[1][0] if fence is None else None
            line = ""
        is_prose = fence is None and not re.match(r"^\s*[|:\-\s=]+$", line)
        lines.append((number, line if is_prose else ""))
    yield from _paragraphs(lines)


_READERS = {".py": _of_python, ".lua": _of_lua, ".md": _of_markdown}


def count(path: Path) -> tuple[Count, Count]:
    """Return the count of a file's prose, and the count of its test names."""
    prose, names = Count(), Count()
    for paragraph in _READERS[path.suffix](path.read_text(encoding="utf-8")):
        counted = names if paragraph.is_name else prose
        counted.words += len(re.findall(r"[A-Za-z][\w'-]*", paragraph.text))
        for rule, pattern in RULES:
            if not paragraph.is_name or rule.get("in_names", True):
                found = (match[0].strip() for match in pattern.finditer(paragraph.text))
                counted.hits += [Hit(paragraph.line, rule["name"], text, rule["instead"]) for text in found if text]
    return prose, names


def files_of(path: Path) -> list[Path]:
    """Return *path*, or the files of a folder that can be read."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in _READERS)


def main(paths: list[str]) -> None:
    total = Count()
    for path in (file for each in paths for file in files_of(Path(each))):
        for counted in count(path):
            total += counted
            for hit in counted.hits:
                print(f"{path}:{hit.line}: {hit.rule}: {hit.text!r} -> {hit.instead}")
    print(f"{len(total.hits)} in {total.words:,} words: {total.rate:.1f} per 1,000")


if __name__ == "__main__":
    main(sys.argv[1:])
