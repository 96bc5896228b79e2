"""Limits by key have three forms: a mapping in app.conf, typed text, and the encoded text in Redis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_affinity import SettingError
from celery_affinity.schema.values import encode_part
from celery_affinity.settings.limits import check_limits, encoded_limits, shown_limits, typed_limits
from celery_affinity.settings.loader import parse_change
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import from_redis, is_setting, shared_settings, to_redis

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
patterns = texts.filter(lambda text: not text.startswith(("rate:", "type:")))


@pytest.mark.parametrize(
    ("limits", "in_redis", "shown"),
    [
        ({}, "", "none"),
        ({"crawl:*": 8, "type:pdf": 20}, "type%3Apdf=20 crawl%3A*=8", "type:pdf=20 crawl:*=8"),
        ({"*": 0}, "*=0", "*=0"),
        ({"b": 1, "a b=c": 2}, "a%20b%3Dc=2 b=1", "a%20b=c=2 b=1"),
        ({"50%": 1}, "50%25=1", "50%25=1"),
        ({"type:größe": 1}, "type%3Agr%C3%B6%C3%9Fe=1", "type:gr%C3%B6%C3%9Fe=1"),
        ({"none": 3}, "none=3", "none=3"),
        ({"rate:a:*": "100/m", "*": 1}, "rate%3Aa%3A*=100/60000000 *=1", "rate:a:*=100/m *=1"),
        ({"rate:*": "1/s", "rate:b": "9/h"}, "rate%3Ab=9/3600000000 rate%3A*=1/1000000", "rate:b=9/h rate:*=1/s"),
    ],
)
def test_limits_convert_between_three_forms(limits, in_redis, shown):
    settings = Settings(limits=limits)
    assert shared_settings(settings)["limits"] == in_redis
    assert from_redis("limits", in_redis) == shown
    assert parse_change("affinity_limits", shown) == ("limits", shown)
    assert to_redis("limits", shown) == in_redis


@given(st.dictionaries(patterns, st.integers(0, 10**9)))
def test_any_limits_survive_a_round_trip(limits):
    assert check_limits(limits) is None
    for form in (shown_limits(limits), encoded_limits(limits)):
        assert typed_limits(form) == limits
        assert check_limits(form) is None
    assert is_setting("limits", encoded_limits(limits))


@given(patterns, texts)
def test_encoded_pattern_matches_encoded_keys(prefix, rest):
    prefix = prefix.replace("*", "")
    encoded, _, _ = encoded_limits({f"{prefix}*": 1}).rpartition("=")
    assert encode_part(prefix + rest).startswith(encoded.removesuffix("*"))


def test_invalid_limits_are_refused(subtests):
    for limits in [
        *({"a": limit} for limit in (-1, True, 1.5, "1", 10**18, "1/s")),
        *({key: 1} for key in ("", 5, "\ud800", "rate:a", "type:", "type:a*", "type:a,b")),
        *({"rate:a": rate} for rate in ("0/s", "1/d", "1/1000000")),
        *({"type:a": "1/s"}, "a", "a=", "=1", "a=-1", "a=1.5", "a=1 b", "rate:a=1", "a=1/s", "rate:a=1/"),
        *("rate:a=/s", "type:a*=1", "a=1,b=2", 5, ["a=1"], "none a=1", "8", "1e3", "nan"),
    ]:
        with subtests.test(str(limits)):
            with pytest.raises(SettingError, match=r"affinity_limits must be limits by key such as .*, got: "):
                Settings(limits=limits)
            if isinstance(limits, str):
                with pytest.raises(SettingError, match="affinity_limits must be limits by key such as "):
                    parse_change("limits", limits)
                assert not is_setting("limits", limits)


def test_limits_can_be_given_as_text():
    as_text, as_mapping = Settings(limits="type:pdf=2 a=1"), Settings(limits={"a": 1, "type:pdf": 2})
    assert shared_settings(as_text) == shared_settings(as_mapping)
