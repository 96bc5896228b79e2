"""The pages on advice and on the optimum are followed: their commands print what they show."""

import re

import pytest

from ..support.pages import blocks, missing_lines
from ..support.shop_folder import ShopFolder

ADVISE, OPTIMUM = "docs/how-to/lab-advise.md", "docs/how-to/lab-optimum.md"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Return a folder in which the trace was made."""
    folder = ShopFolder(tmp_path_factory.mktemp("shop"))
    folder.run(ADVISE, "make")
    return folder


@pytest.mark.parametrize("command", ["ocr", "both", "fewer"])
def test_the_advice_is_what_the_page_shows(shop, command):
    assert missing_lines(blocks(ADVISE)[f"{command}-advice"], shop.run(ADVISE, command)) == []


def test_the_bounds_are_what_the_page_shows_but_for_rounding(shop):
    """The solver of another release may take another way to prices that are as good."""
    shown, printed = blocks(OPTIMUM)["waits"], shop.run(OPTIMUM, "optimum")
    number = re.compile(r"\d+(?:[.,]\d+)*")
    assert number.sub("N", printed.strip()).split() == number.sub("N", shown.strip()).split()
    for ours, theirs in zip(number.findall(shown), number.findall(printed), strict=True):
        assert float(ours.replace(",", "")) == pytest.approx(float(theirs.replace(",", "")), rel=0.05)
