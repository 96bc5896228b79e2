"""A pattern matches a whole text, in plain and encoded form."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_affinity.schema import values

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
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
def test_star_matches_any_characters(pattern, text, is_match):
    assert values.matches(pattern, text) is is_match


@given(TEXTS, TEXTS, TEXTS)
def test_encoded_pattern_matches_the_same_texts(begin, end, between):
    pattern, text = f"{begin}*{end}", begin + between.replace("*", "") + end
    assert values.matches(values.encoded_pattern(pattern), values.encoded_pattern(text))
    assert unquote(values.shown_pattern(pattern)) == pattern
    assert unquote(values.encoded_pattern(pattern)) == pattern
    assert not set(values.shown_pattern(pattern)) & set(" ,\n")


@pytest.mark.parametrize("value", ["", None, 3, b"pdf", "\ud800"])
def test_values_redis_cannot_store_are_not_patterns(value):
    assert not values.is_pattern(value)
