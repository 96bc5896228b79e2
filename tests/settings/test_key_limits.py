"""Limits by key: as an app.conf has them, as somebody types them, and as the scripts read them."""

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
def test_limits_have_three_forms(limits, in_redis, shown):
    settings = Settings(limits=limits)
    assert shared_settings(settings)["limits"] == in_redis
    assert from_redis("limits", in_redis) == shown
    assert parse_change("affinity_limits", shown) == ("limits", shown)
    assert to_redis("limits", shown) == in_redis


@given(st.dictionaries(patterns, st.integers(0, 10**9)))
def test_any_limits_come_back(limits):
    assert check_limits(limits) is None
    for form in (shown_limits(limits), encoded_limits(limits)):
        assert typed_limits(form) == limits
        assert check_limits(form) is None
    assert is_setting("limits", encoded_limits(limits))


@given(patterns, texts)
def test_a_pattern_in_redis_is_that_of_encoded_keys(prefix, rest):
    prefix = prefix.replace("*", "")
    (word, _, _) = encoded_limits({f"{prefix}*": 1}).rpartition("=")
    assert encode_part(prefix + rest).startswith(word.removesuffix("*"))


def test_other_limits_are_refused(subtests):
    for limits in [
        *({"a": -1}, {"a": True}, {"a": 1.5}, {"a": "1"}, {"a": 10**18}, {"": 1}, {5: 1}, {"\ud800": 1}),
        *(
            {"rate:a": 1},
            {"rate:a": "0/s"},
            {"rate:a": "1/d"},
            {"rate:a": "1/1000000"},
            {"a": "1/s"},
            {"type:a": "1/s"},
        ),
        *({"type:": 1}, {"type:a*": 1}, {"type:a,b": 1}),
        *(
            "a",
            "a=",
            "=1",
            "a=-1",
            "a=1.5",
            "a=1 b",
            "rate:a=1",
            "a=1/s",
            "rate:a=1/",
            "rate:a=/s",
            "type:a*=1",
            "a=1,b=2",
            5,
            ["a=1"],
            "none a=1",
        ),
    ]:
        with subtests.test(str(limits)):
            with pytest.raises(SettingError, match=r"affinity_limits must be limits by key such as .*, got: "):
                Settings(limits=limits)
            if isinstance(limits, str):
                with pytest.raises(SettingError, match="affinity_limits must be limits by key such as "):
                    parse_change("limits", limits)
                assert not is_setting("limits", limits)


def test_a_number_alone_is_no_limit_at_run_time():
    for text in ("8", "1e3", "nan"):
        with pytest.raises(SettingError, match="affinity_limits must be limits by key such as "):
            parse_change("limits", text)


def test_an_environment_may_say_limits_as_text():
    assert shared_settings(Settings(limits="type:pdf=2 a=1")) == shared_settings(
        Settings(limits={"a": 1, "type:pdf": 2})
    )
