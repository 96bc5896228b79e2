"""Each test belongs to one tier, and `.ci/run` runs the Makefile target of each tier that is not long."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from .tiers import LONG, TIERS, selected, tier_of

ROOT = Path(__file__).parents[2]


def an_item(path="tests/rules/test_score.py", markers=(), fixtures=(), **params):
    return SimpleNamespace(
        nodeid=f"{path}::test_it",
        get_closest_marker=lambda name: name in markers,
        fixturenames=fixtures,
        callspec=SimpleNamespace(params=params),
    )


@pytest.mark.parametrize(
    ("item", "tier"),
    [
        (an_item(), "test"),
        (an_item(server="valkey"), "test"),
        (an_item(server="redis"), "redis"),
        (an_item(server="redis", markers=["slow"]), "slow"),
        (an_item("tests/docs/test_words.py"), "docs"),
        (an_item("tests/docs/test_words.py", server="redis"), "docs"),
        (an_item("tests/web/test_page.py", markers=["docs"]), "docs"),
        (an_item("tests/whole/test_chaos.py", markers=["slow"]), "slow"),
        (an_item("tests/whole/test_zombie.py", markers=["test"]), "test"),
        (an_item("tests/apps/test_plugins.py"), "apps"),
        (an_item("tests/cli/test_all_cohorts.py", fixtures=["cluster"]), "whole"),
    ],
)
def test_tier_follows_from_marker_folder_fixture_and_server(item, tier):
    assert tier_of(item) == tier
    assert [each for each in TIERS if selected([item], each)] == [tier], "no other target runs it"


def test_run_without_a_tier_omits_long_tests():
    long = [an_item(markers=["slow"]), an_item("tests/apps/test_plugins.py")]
    others = [an_item(), an_item("tests/docs/test_words.py")]
    assert selected([*long, *others], None) == others


def test_each_tier_has_one_target_and_runs_in_ci():
    targets = {}
    for target, recipe in re.findall(r"^([\w-]+):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M):
        targets |= dict.fromkeys(re.findall(r"--tier=(\w+)", recipe), target)
    assert targets == {tier: {"test": "test", "slow": "slow"}.get(tier, f"test-{tier}") for tier in TIERS}
    looped = re.search(r"^for tier in (.*); do$", (ROOT / ".ci/run").read_text(), re.M).group(1).split()
    assert looped == [target for tier, target in targets.items() if tier not in LONG]


def test_each_marker_of_a_tier_is_declared(pytestconfig):
    declared = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    assert set(TIERS) <= declared
