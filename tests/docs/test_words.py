"""Ambiguous words that the project has replaced do not return to docs, help texts, logs, errors and comments."""

import ast
import re
from collections import defaultdict

import click
import pytest

from celery_affinity.cli import affinity
from docs.pages import log
from docs.pages.outputs import OUTPUTS

from ..support.processes import ROOT

#: Pattern of an ambiguous word -> its replacement.
INSTEAD = {
    r"mend(s|ed|ing)?": "fix",
    r"figures?": "metric, number, count or measurement",
    r"(is|are|was|were|be|been|goes|went) away": "is down, or does not answer",
    r"some (\d[\d,.]*|two|three|four|five|ten|twenty|thirty|dozen|hundred|minutes|seconds)": "about, or a few",
    r"(?<!celery )beats?": "heartbeat, or celery beat",
    r"turns? of (the|its|an|a worker's) (event )?loop": "iteration of the loop; a turn is a tenant's, or a type's",
    r"loops?( that| which| would| must| does not| do not| to)? turn(s|ed|ing)?( again)?": "the loop runs, or iterates",
}

#: Phrases in which such a word is not ambiguous.
ALLOWED = ("goes away with",)

PACKAGE = ROOT / "celery_affinity"
PAGES = [str(each.relative_to(ROOT)) for each in sorted((ROOT / "docs").rglob("*.md"))]
_WRITTEN_AS_CODE = re.compile(r"`[^`]+`")
_CODE = re.compile(r"^( *)```.*?^ *```$|`[^`]+`", re.MULTILINE | re.DOTALL)


def found(text):
    """Return the ambiguous words in *text*, with their replacements."""
    text = " ".join(text.split())
    for phrase in ALLOWED:
        text = text.replace(phrase, "")
    return [
        f"{each[0]!r} in {text[max(0, each.start() - 40) : each.end() + 30]!r}: {instead}"
        for pattern, instead in INSTEAD.items()
        for each in re.finditer(rf"(?<![\w.-])({pattern})(?![\w-]|\.\w)", text, re.IGNORECASE)
    ]


def prose(page):
    """Return the text of a page without code. `celery beat` counts as text."""
    return _CODE.sub("`", page.read_text().replace("`celery beat`", "celery beat"))


def commands(command, names=("celery affinity",)):
    yield " ".join(names), command
    for name in command.list_commands(None) if isinstance(command, click.Group) else ():
        yield from commands(command.get_command(None, name), (*names, name))


def explained():
    """Yield each docstring and comment of the package, with its file and line."""
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")]):
        source = path.read_text()
        if path.suffix == ".lua":
            texts = [(each.start(), each[0]) for each in re.finditer(r"--.*(?:\n-- .*)*", source)]
        else:
            texts = [(each.start(), each[0]) for each in re.finditer(r'^ *"""[\s\S]*?"""|#[: ].*', source, re.M)]
        for start, text in texts:
            yield f"{path.relative_to(ROOT)}:{source.count(chr(10), 0, start) + 1}", text.replace("``", "`")


def raised():
    """Yield the texts of exceptions and of findings of `check`, with their files and lines."""
    for path in sorted(PACKAGE.rglob("*.py")):
        is_rule = path.parent.name == "rules" and path.parents[1].name == "check"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) or (is_rule and isinstance(node, ast.Yield)):
                texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
                yield (
                    f"{path.relative_to(ROOT)}:{node.lineno}",
                    " ".join(each for each in texts if isinstance(each, str)),
                )


def test_a_page_has_none_of_the_words(subtests):
    for page in ["README.md", "CONTRIBUTING.md", *PAGES]:
        with subtests.test(str(page)):
            assert found(prose(ROOT / page)) == []


def test_no_help_text_has_one():
    with click.Context(affinity) as context:
        helps = {name: each.get_help(context) for name, each in commands(affinity)}
    assert len(helps) > 20
    assert {name: words for name, text in helps.items() if (words := found(text))} == {}


def test_no_log_line_has_one():
    lines = [text for _, text, _ in log._lines()]
    assert len(lines) > 80
    assert [words for text in lines if (words := found(text))] == []


def test_no_error_and_no_finding_has_one():
    texts = dict(raised())
    assert len(texts) > 150
    assert {place: words for place, text in texts.items() if (words := found(text))} == {}


def test_no_docstring_and_no_comment_has_one():
    texts = dict(explained())
    assert len(texts) > 3_000
    assert {place: words for place, text in texts.items() if (words := found(_WRITTEN_AS_CODE.sub("`", text)))} == {}


def test_no_two_classes_have_one_name():
    """A public class name is unique in the package. Private names only have to be unique in their module."""
    places = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 300
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_a_turn_that_tells_is_found():
    assert found("The event loop turns again, and each turn of the loop tells.") != []


def test_no_output_of_a_command_has_one():
    assert found(OUTPUTS.read_text()) == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Mend the call, then the figures are right", 2),
        ("the broker is away for some 20 s", 2),
        ("at the next beat", 1),
        ("`celery beat` and heartbeats, an amendment, some jobs, configure", 0),
    ],
)
def test_the_words_are_found_and_no_others(text, number):
    assert len(found(text.replace("`", ""))) == number
