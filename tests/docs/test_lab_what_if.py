"""The page on what-if is followed: its commands print what it shows, and its options are those that there are."""

import re

import pytest

from celery_affinity.cli.lab import whatif

from ..support.pages import blocks, missing_lines
from ..support.processes import ROOT
from ..support.shop_folder import ShopFolder

PAGE = "docs/how-to/lab.md"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Return a folder in which the trace was made."""
    folder = ShopFolder(tmp_path_factory.mktemp("shop"))
    folder.run(PAGE, "make")
    return folder


@pytest.mark.parametrize(("command", "shown"), [("replay", "replayed"), ("limit", "limited"), ("add", "added")])
def test_the_commands_print_what_the_page_shows(shop, command, shown):
    assert missing_lines(blocks(PAGE)[shown], shop.run(PAGE, command)) == []


def test_the_plot_is_written(shop):
    shop.run(PAGE, "limit")
    assert "limits.type:pdf=6" in (shop.folder / "waits.svg").read_text()


def test_the_page_names_all_options():
    text = (ROOT / PAGE).read_text()
    named = set(re.findall(r"`(--[a-z]+)", text))
    assert named >= {name for each in whatif.params for name in each.opts if name.startswith("--")} - {"--plot"}
    assert "--plot waits.svg" in text
