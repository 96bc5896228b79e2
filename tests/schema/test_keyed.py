"""Keys: accepted values, the rules field of a job, and refusals in the line that sets them."""

import copy
import pickle
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kombu.utils.json import dumps, loads

from celery_affinity import Exclusive, OptionError, Rate
from celery_affinity.options.key_templates import encoded_key
from celery_affinity.options.keys import as_exclusive, as_rate, key_in, rule_of_call
from celery_affinity.schema.constants import MAX_KEY_LENGTH, MAX_NUMBER_LENGTH
from celery_affinity.schema.job_record import FIELDS
from celery_affinity.schema.rules_codec import StatedRate, is_valid, rate_in
from celery_affinity.schema.values import MAX_COUNT

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def refused(message):
    return pytest.raises(OptionError, match="^" + re.escape(message))


# -- the rules field


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Exclusive("{x}"), "key=HH limit=1"),
        (Exclusive("{x}", 4), "key=HH limit=4"),
        (Exclusive("{x}", limit=1, keep_order=True), "key=HH limit=1 order=1"),
        (Rate("10/s", "{x}"), "key=rate%3AHH rate=10/1000000"),
        (Rate("100/m", "{x}"), "key=rate%3AHH rate=100/60000000"),
        (Rate("1/h", key="{x}"), "key=rate%3AHH rate=1/3600000000"),
    ],
)
def test_rule_is_encoded_with_key_and_numbers(rule, text):
    assert rule.text("HH") == text
    assert is_valid(text)
    assert key_in(text) == ("rate:HH" if isinstance(rule, Rate) else "HH")
    assert pickle.loads(pickle.dumps(rule)) == copy.deepcopy(rule) == rule
    assert type(rule)(**loads(dumps(rule))) == rule


@given(texts, st.integers(1, MAX_COUNT - 1), st.booleans())
@example("x" * 300, 1, True)
@example("日" * 300, 1, True)
def test_every_text_can_be_a_key(key, limit, is_rate):
    rule = Rate(f"{limit}/s", "k") if is_rate else Exclusive("k", limit)
    if not is_rate and key.startswith(("rate:", "type:")):
        return
    text = rule.text(key)
    assert re.fullmatch(FIELDS["rules"].pattern, text)
    shown = key_in(text)
    whole = f"rate:{key}" if is_rate else key
    if len(encoded := text.split()[0].removeprefix("key=")) < MAX_KEY_LENGTH - 12:  # no cut takes more than a character
        assert shown == whole
    else:
        assert shown == whole or whole.startswith(shown.rpartition("%-")[0])
    assert len(encoded) <= MAX_KEY_LENGTH


@given(st.lists(texts, min_size=2, max_size=2, unique=True), st.integers(0, 300))
def test_different_keys_have_different_encodings(keys, length):
    one, other = (encoded_key("exclusive", "k" * length + key) for key in keys)
    assert one != other


def test_long_key_is_hashed_after_a_readable_start():
    host = "crawl:" + "a/" * 200
    encoded = encoded_key("exclusive", host)
    assert len(encoded) <= MAX_KEY_LENGTH
    _, digest = encoded.split("%-")
    assert encoded_key("exclusive", host).startswith("crawl%3Aa%2Fa%2F")
    assert re.fullmatch("[0-9a-f]{32}", digest)
    assert encoded_key("exclusive", host + "b") != encoded
    assert encoded_key("exclusive", key_in(f"key={encoded} limit=1")) != encoded  # a shown key cannot be reused
    assert encoded_key("exclusive", "x" * MAX_KEY_LENGTH) == "x" * MAX_KEY_LENGTH


def test_readable_start_of_a_long_key_ends_between_characters():
    assert set(key_in(rule_of_call("exclusive", "日" * 300)).rpartition("%-")[0]) == {"日"}


def test_invalid_rules_have_no_key():
    for text in ("", None, 5, "key=a", "key=a limit=0", "key=a limit=1 order=1\n", {"key": "a"}, "limit=1 key=a"):
        assert key_in(text) is None
    assert is_valid("")
    assert not is_valid(None)


# -- refusals

NO_KEY = "key of exclusive must be a text that is not empty, such as 'city:{city}', or a func"
NO_LIMIT = "limit of exclusive must be a whole number above 0, up to 1,000,000,000, got: "
RESERVED_KEY = "key of exclusive must be one that does not begin with 'rate:', 'tenant:' or 'type:', got: "
NO_RATE = "rate must be a whole number above 0 of up to 9 digits for each s, m or h, such as '100/m', got: "


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Exclusive(""), NO_KEY),
        (lambda: Exclusive(None), NO_KEY),
        (lambda: Exclusive(5), NO_KEY),
        (lambda: Exclusive("k", 0), f"{NO_LIMIT}0"),
        (lambda: Exclusive("k", True), f"{NO_LIMIT}True"),
        (lambda: Exclusive("k", 1.5), f"{NO_LIMIT}1.5"),
        (lambda: Exclusive("k", 10**9 + 1), f"{NO_LIMIT}1000"),
        (lambda: Exclusive("k", 2, keep_order=True), "limit of exclusive with keep_order must be 1, got: 2"),
        (lambda: Exclusive("k", keep_order=1), "keep_order of exclusive must be True or False, got: 1"),
        (lambda: Exclusive("rate:k"), RESERVED_KEY),
        (lambda: Exclusive("type:k"), RESERVED_KEY),
        (lambda: Exclusive("k", limt=2), "Exclusive takes key, limit, keep_order, got: 'limt'; did you mean 'limit'?"),
        (lambda: Exclusive("{x}").text("type:k"), "key of exclusive must be one that does not begin with"),
        (lambda: Exclusive("{x}").text(""), "key of exclusive must be a text that is not empty, got: ''"),
        (lambda: Exclusive("{x}").text("\ud800"), "key of exclusive must be a text in UTF-8, got: '\\ud800'"),
        (lambda: Rate("{x}", "k"), f"{NO_RATE}'{{x}}'"),
        (lambda: Rate("1", "k"), NO_RATE),
        (lambda: Rate("0/m", "k"), NO_RATE),
        (lambda: Rate("0.5/m", "k"), NO_RATE),
        (lambda: Rate("1/d", "k"), NO_RATE),
        (lambda: Rate(100, "k"), f"{NO_RATE}100"),
        (lambda: Rate("1/s", ""), "key of rate must be a text that is not empty"),
        (lambda: Rate("1/s", "{x}").text(""), "key of rate must be a text that is not empty, got: ''"),
        (lambda: Rate("1/s", ky="k"), "Rate takes rate, key, got: 'ky'; did you mean 'key'?"),
        (lambda: as_exclusive({"limit": 1}), "exclusive must be a key (str) or an Exclusive, got: {'limit': 1}"),
        (lambda: as_rate({"rate": "1/s"}), "rate must be a Rate, such as Rate('100/m', 'crawl:{host}'), got: {'rate'"),
        (lambda: rule_of_call("exclusive", True), "exclusive must be a key (str), an Exclusive, or False, got: True"),
        (lambda: rule_of_call("exclusive", ""), "key of exclusive must be a text that is not empty, got: ''"),
        (
            lambda: rule_of_call("rate", "k"),
            "rate must be a Rate, such as Rate('100/m', 'crawl:{host}'), or False, got",
        ),
    ],
)
def test_invalid_rule_is_refused_where_it_is_written(make, message):
    with refused(message):
        make()


def test_rate_accepts_any_key():
    assert Rate("1/s", "type:x").text("type:x") == "key=rate%3Atype%3Ax rate=1/1000000"


def test_function_cannot_be_serialized_in_a_message():
    with pytest.raises(Exception, match="key of exclusive must be a text where a signature with it is written into a"):
        dumps(Exclusive(lambda args, kwargs: "k"))


@pytest.mark.parametrize("number", ["1", "1" + "0" * 15, "9" * MAX_NUMBER_LENGTH])
def test_rate_is_parsed_up_to_the_maximum_digits(number):
    assert rate_in(f"{number}/{number}") == StatedRate(int(number), int(number))


@pytest.mark.parametrize(
    "text", ["", "3", "/", "1/", "/1", "0/1", "01/1", "1/0", "1/1/1", "1" * (MAX_NUMBER_LENGTH + 1) + "/1"]
)
def test_invalid_rate_is_not_parsed(text):
    assert rate_in(text) is None
