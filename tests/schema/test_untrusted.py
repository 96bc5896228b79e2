"""Untrusted values are checked before they are converted."""

import json
import math
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.utils.json import object_hook

from celery_affinity.errors import OptionError
from celery_affinity.schema import untrusted

from ..support.from_outside import HALF, MARKED, NUMBERS, VALUES, as_kombu_reads, nested

HOSTILE = VALUES.map(as_kombu_reads) | st.sampled_from([*map(as_kombu_reads, MARKED), *NUMBERS]) | st.decimals()


@settings(max_examples=500)
@given(value=HOSTILE)
def test_every_value_has_a_bounded_number_and_text(value):
    assert 0 <= untrusted.clamp(value, 0, 10, 3) <= 10
    whole = untrusted.as_whole_number(value, -5, 5)
    assert whole is None or (type(whole) is int and -5 <= whole <= 5)
    assert not untrusted.is_number(value) or (math.isfinite(value) and abs(value) <= 2**62)
    text = untrusted.bounded_text(value, 50)
    assert text is None or (type(text) is str and len(text) <= 50)
    assert len(untrusted.describe_shape(value)) < 50


@settings(max_examples=500)
@given(value=HOSTILE | st.dictionaries(st.text(), HOSTILE))
def test_strict_json_is_accepted_by_strict_parsers_or_refused(value):
    try:
        written = untrusted.strict_json(value)
    except ValueError:
        return

    def refuse(name):
        raise AssertionError(f"{name} is not valid JSON")

    again = untrusted.loads(written.encode(), parse_constant=refuse)
    assert untrusted.strict_json(again) == written


@settings(max_examples=500)
@given(written=st.text() | st.binary() | st.builds(json.dumps, VALUES))
def test_loads_returns_a_value_or_raises_value_error(written):
    try:
        value = untrusted.loads(written, longest=5_000, object_hook=object_hook)
    except ValueError:
        return
    assert not untrusted.is_too_deep(value)


@given(value=st.recursive(st.text(), lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner)))
def test_depth_is_the_number_of_nested_levels(value):
    def depth(value):
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    for max_depth in range(depth(value) + 2):
        is_too_deep = depth(value) > max_depth
        assert untrusted.is_too_deep(value, max_depth) == is_too_deep
        try:
            untrusted.loads(json.dumps(value), max_depth=max_depth)
        except untrusted.TooDeepError:
            assert is_too_deep
        else:
            assert not is_too_deep


def test_clamped_compares_before_it_converts():
    cases = [
        (Decimal("1E+999999999"), 10),
        (Decimal("-1E+999999999"), 0),
        (Decimal("1E-999999999"), 0),
        (10**4000, 10),
        ("50", 10),
        ("3", 3),
        (" 3 ", 3),
        ("9" * 5000, 7),
        ("3.5", 7),
        (3.9, 3),
        (True, 1),
        *((value, 7) for value in (None, [], {}, b"3", "", float("nan"), float("inf"), Decimal("sNaN"))),
    ]
    wrong = [(value, found) for value, expected in cases if (found := untrusted.clamp(value, 0, 10, 7)) != expected]
    assert not wrong


def test_depth_is_measured_without_recursion():
    assert not untrusted.is_too_deep(nested(100))
    assert untrusted.is_too_deep(nested(101))
    assert untrusted.is_too_deep(nested(200_000))
    shared = "x"
    for _ in range(90):
        shared = [shared, shared]  # 2**90 paths
    assert not untrusted.is_too_deep(shared)
    shared.append(shared)
    assert untrusted.is_too_deep(shared)


@pytest.mark.parametrize("written", ["[" * 200_000, '[{"a":' * 100, b"\xff", "9" * 5000, '"\\', "[" + "1," * 5000])
def test_loads_raises_only_value_error_for_hostile_texts(written):
    with pytest.raises(ValueError):
        untrusted.loads(written, longest=300_000)


def test_loads_refuses_a_text_that_is_too_long():
    assert untrusted.loads("12345", longest=5) == 12345
    with pytest.raises(ValueError, match="at most 5 characters, got: 6"):
        untrusted.loads("123456", longest=5)


def test_strict_json_names_the_cause():
    cases = {
        "nested": nested(101),
        "JSON compliant": {"a": [float("nan")]},
        "surrogates": [HALF],
        "not JSON serializable": [Decimal(1)],
        "keys must be": {(1, 2): 3},
    }
    wrong = []
    for cause, value in cases.items():
        with pytest.raises(ValueError) as caught:
            untrusted.strict_json(value)
        if cause not in str(caught.value):
            wrong.append((cause, str(caught.value)))
    assert not wrong


def test_error_names_the_field_that_has_no_text():
    assert [untrusted.shown_text("id", value) for value in (None, "", "a", 7)] == ["", "", "a", "7"]
    for value in (["a"], {}, b"a", "x" * 20_000, nested(10_000), True):
        with pytest.raises(OptionError, match="id"):
            untrusted.shown_text("id", value)
