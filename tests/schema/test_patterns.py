"""A pattern stands for the whole of a text, in each of its forms."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_affinity.schema import values

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.mark.parametrize(
    ("pattern", "text", "does"),
    [
        ("pdf", "pdf", True),
        ("pdf", "pdf2", False),
        ("pdf", "a pdf", False),
        ("pdf*", "pdf", True),
        ("p*f", "pdf", True),
        ("*:*", "city:HH", True),
        ("*:*", "city", False),
        ("a.c", "abc", False),
        ("a*", "a\nb", True),
        ("*", "", True),
    ],
)
def test_a_star_stands_for_any_characters_and_all_else_for_itself(pattern, text, does):
    assert values.matches(pattern, text) is does


@given(TEXTS, TEXTS, TEXTS)
def test_a_pattern_in_the_form_of_redis_matches_encoded_what_it_matches_as_it_is_said(begin, end, between):
    pattern = f"{begin}*{end}"
    assert values.matches(
        values.encoded_pattern(pattern), values.encoded_pattern(begin + between.replace("*", "") + end)
    )
    assert unquote(values.shown_pattern(pattern)) == pattern
    assert unquote(values.encoded_pattern(pattern)) == pattern
    assert not set(values.shown_pattern(pattern)) & set(" ,\n")


@pytest.mark.parametrize("value", ["", None, 3, b"pdf", "\ud800"])
def test_what_redis_cannot_have_is_no_pattern(value):
    assert not values.is_pattern(value)
