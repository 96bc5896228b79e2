"""Comments, docs and test names stay plain: few turns of phrase of `prose_rules.toml` per 1,000 words."""

from functools import cache
from pathlib import Path

import pytest

from ..support import prose
from ..support.processes import ROOT

#: Place -> maximum number of matches per 1,000 words, in all of its files together.
LIMITS = {
    "celery_affinity": 8,
    "tests": 8,
    "docs": 6,
    "benchmarks/results": 6,
    "README.md": 4,
    "CONTRIBUTING.md": 6,
    "CHANGELOG.md": 6,
}
#: Maximum in each file of the package with `MIN_WORDS` words or more, and in all test names together.
MAX_IN_FILE, MIN_WORDS, MAX_IN_NAMES = 15, 100, 12


count = cache(prose.count)


def listed(counted, path=""):
    return "\n".join(f"{path}:{hit.line}: {hit.rule}: {hit.text!r} -> {hit.instead}" for hit in counted.hits[:40])


@pytest.mark.parametrize(("place", "limit"), LIMITS.items())
def test_prose_has_few_odd_phrases(place, limit):
    total = sum((count(path)[0] for path in prose.files_of(ROOT / place)), prose.Count())
    assert total.words > 100
    assert total.rate <= limit, f"{total.rate:.1f} per 1,000 words\n{listed(total)}"


def test_no_file_of_the_package_has_many_odd_phrases(subtests):
    for path in prose.files_of(ROOT / "celery_affinity"):
        counted, _ = count(path)
        with subtests.test(path.name):
            assert counted.words < MIN_WORDS or counted.rate <= MAX_IN_FILE, listed(counted, path)


def test_names_of_tests_have_few_odd_phrases():
    total = sum((count(path)[1] for path in prose.files_of(ROOT / "tests")), prose.Count())
    assert total.words > 10_000
    assert total.rate <= MAX_IN_NAMES, listed(total)


@pytest.mark.parametrize(
    ("suffix", "text", "rules"),
    [
        (".py", '"""Return how many jobs there are."""', ["return-how-many"]),
        (".py", "# Else the job is gone.", ["else-or", "gone-left"]),
        (".py", "x = 1  # prose: ok: nobody", []),
        (".py", "def test_what_goes_waits_for_nobody(): ...", ["nobody"]),
        (".lua", '-- RETURNS what is known\nlocal a = "-- nobody"', ["headless-what", "is-known"]),
        (".md", "A job is claimed.\n\n```\nnobody\n```\n<!-- nobody -->\n", []),
        (".md", "| nobody |\n", ["nobody"]),
    ],
)
def test_counter_finds_phrases_only_in_prose(tmp_path: Path, suffix, text, rules):
    path = tmp_path / f"file{suffix}"
    path.write_text(text)
    hits = [hit.rule for counted in prose.count(path) for hit in counted.hits]
    assert sorted(hits) == sorted(rules)
