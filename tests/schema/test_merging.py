"""Merge: the rules field of a job, and refused values."""

import copy
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps

from celery_affinity import Affinity, Call, Exclusive, Merge, OptionError
from celery_affinity.options.keys import key_in
from celery_affinity.options.merge import merge_key, merge_key_in
from celery_affinity.schema.constants import USUAL_BOUNDS
from celery_affinity.schema.job_record import FIELDS
from celery_affinity.schema.rules_codec import decode_rules, is_valid, join_rules, readable_rules

from ..support.kept_rules import kept_rules

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def union(a, b):
    return a.replace(changes=[*a.kwargs["changes"], *b.kwargs["changes"]])


def refused(message):
    return pytest.raises(OptionError, match="^" + re.escape(message))


def test_merge_is_encoded_with_key_and_bounds():
    text = Merge("{city}", keep="last", most=5, most_bytes=100).text("New York")
    assert text == "merge=New%20York most=5 bytes=100"
    assert is_valid(text)
    assert merge_key_in(text) == "New York"
    assert key_in(text) is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"wait": 0}, ""),
        ({"wait": 2}, " wait=2000000/10000000"),
        ({"wait": 0.5, "at_most": 0.5}, " wait=500000/500000"),
        ({"wait": 1e-9}, " wait=1/1"),
        ({"wait": 8_640_000}, " wait=8640000000000/8640000000000"),
    ],
)
def test_merge_window_is_encoded_if_set(options, text):
    rules = Merge("k", keep="first", **options).text("k")
    assert rules == "merge=k most=1000 bytes=1000000" + text
    merge = decode_rules(rules).merge
    assert (merge.most, merge.most_bytes) == (1000, 1_000_000)
    assert f" wait={merge.wait_us}/{merge.at_most_us}" == (text or " wait=0/0")
    both = join_rules(rules, "key=k limit=1")
    assert is_valid(both)
    assert decode_rules(both).merge == merge
    assert dict(decode_rules(both).texts) == {"merge": rules, "exclusive": "key=k limit=1"}


@given(texts, texts)
def test_rules_can_have_merge_and_exclusive_keys(merge, key):
    of_merging = Merge("k", keep="first").text(merge)
    of_key = Exclusive("k").text("of " + key)
    assert re.fullmatch(FIELDS["rules"].pattern, join_rules(of_merging, of_key))
    for parts in ((of_merging, of_key), (of_merging, ""), ("", of_key), ("", "")):
        decoded = decode_rules(join_rules(*parts)).texts
        assert tuple(decoded.get(kind, "") for kind in ("merge", "exclusive")) == parts


def test_merge_can_be_copied_and_pickled():
    for rule in (Merge("{city}", keep="all"), Merge("{city}", fold=union, split=max)):
        assert pickle.loads(pickle.dumps(rule)) == copy.copy(rule) == rule


def test_invalid_merge_is_refused(subtests):
    one_way = 'Merge takes one of keep="first", "last", "all", or fold=, got: '
    function = "must be a function, or the dotted name of one, got: "
    most = "most of merge must be a whole number, 2 or more, up to 1,000,000,000, got: "
    wait = "wait of merge must be a number of seconds, 0 or more, up to 8,640,000, got: "
    at_most = "at_most of merge must be a number of seconds, wait (2) to 8,640,000, got: "
    no_times = (-1, True, float("nan"), float("inf"), 8_640_001)
    for options, message in [
        ({}, f"{one_way}neither"),
        ({"keep": "newest"}, f"{one_way}keep='newest'"),
        ({"keep": "last", "fold": union}, f"{one_way}keep='last'"),
        ({"fold": "union"}, f"fold of merge {function}'union'"),
        ({"fold": "shop. union"}, f"fold of merge {function}'shop. union'"),
        ({"keep": "all", "split": 3}, f"split of merge {function}3"),
        ({"keep": "all", "most": 1}, f"{most}1"),
        ({"keep": "all", "most": True}, f"{most}True"),
        (
            {"keep": "all", "most_bytes": 0},
            "most_bytes of merge must be a whole number above 0, up to 1,000,000,000, g",
        ),
        *(({"keep": "all", "wait": time}, f"{wait}{time!r}") for time in (*no_times, "2", None)),
        *(({"keep": "all", "wait": 2, "at_most": time}, f"{at_most}{time!r}") for time in (*no_times, "10", 1.9)),
        ({"keep": "all", "at_most": 5}, "at_most of merge says how long wait= may take in all, and there is no wait=,"),
        (
            {"keeps": "all"},
            "Merge takes key, keep, fold, most, most_bytes, wait, at_most, split, got: 'keeps'; did you",
        ),
    ]:
        with subtests.test(str((options, message))), refused(message):
            Merge("{city}", **options)


@pytest.mark.parametrize("key", ["", None, 5, "{city!r}", "{city"])
def test_invalid_merge_key_template_is_refused(key):
    with pytest.raises(OptionError, match="merge"):
        Merge(key, keep="first")


def test_affinity_accepts_only_a_merge_object():
    for value in ("{city}", {"key": "{city}", "keep": "last"}, True):
        with refused('merge must be a Merge, such as Merge("{city}", keep="last"), got: '):
            Affinity(merge=value)


def test_merge_cannot_be_serialized_in_a_message():
    with refused("merge belongs to a task; a call can only give its key, with merge_key=, got: Merge("):
        dumps(Affinity(merge=Merge("{city}", keep="last")))


def test_merge_key_of_a_call_is_a_text_or_false():
    for value in ("x", False, None):
        assert merge_key(value) is value
    for value in ("", True, 0.5, b"x"):
        with pytest.raises(OptionError, match="merge_key"):
            merge_key(value)


def test_replace_changes_arguments_of_a_call():
    call = Call((1,), {"a": 2}, "task")
    assert call.replace(b=3) == Call((1,), {"a": 2, "b": 3}, "task")
    assert call.replace(4, a=5) == Call((4,), {"a": 5}, "task")


@pytest.mark.parametrize(
    "bounds", [USUAL_BOUNDS, " most=2 bytes=1", " most=1000 bytes=10000000", " most=10000 bytes=1"]
)
@pytest.mark.parametrize("rest", ["", " wait=1/2", " key=city%3AHH limit=1", " wait=1/2 key=most limit=1 order=1"])
def test_stored_rules_are_restored_completely(bounds, rest):
    rules = f"merge=HH{bounds}{rest}"
    assert readable_rules(kept_rules(rules)) == readable_rules(rules) == rules
    assert readable_rules("") == ""
    assert readable_rules("key=merge limit=1") == "key=merge limit=1"
