"""Reserves have three forms: a mapping in app.conf, typed text, and the encoded text in Redis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_affinity import SettingError
from celery_affinity.schema.values import encode_part
from celery_affinity.settings import reserves
from celery_affinity.settings.loader import parse_change
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import from_redis, is_setting, shared_settings, to_redis

types = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
ranges = st.tuples(st.integers(0, 10), st.integers(0, 10)).filter(lambda pair: pair[0] < pair[1]).map("%d-%d".__mod__)
classes = st.one_of(st.sampled_from(["queued", "on_demand"]), st.integers(0, 10).map(str), ranges)
amounts = st.one_of(st.integers(1, 10**9), st.integers(1, 100).map("%d%%".__mod__))
given_reserves = st.dictionaries(types, st.dictionaries(classes, amounts, min_size=1))


@pytest.mark.parametrize(
    ("given_as", "in_redis", "shown"),
    [
        ({}, "", "none"),
        (
            {"pdf": {"queued": 2, "0-4": "25%"}, "*": {"0": 1}},
            "*:0=1 pdf:0-4=25% pdf:queued=2",
            "*:0=1 pdf:0-4=25% pdf:queued=2",
        ),
        ({"a b.*": {"on_demand": "100%"}}, "a%20b.*:on_demand=100%", "a%20b.*:on_demand=100%"),
        ({"a:b=c": {"3-3": 1}}, "a%3Ab%3Dc:3=1", "a:b=c:3=1"),
        ({"50%": {"10": 5}}, "50%25:10=5", "50%25:10=5"),
        ({"none": {"queued": 1}}, "none:queued=1", "none:queued=1"),
    ],
)
def test_reserves_convert_between_three_forms(given_as, in_redis, shown):
    settings = Settings(reserve=given_as)
    assert shared_settings(settings)["reserve"] == in_redis
    assert from_redis("reserve", in_redis) == shown
    assert parse_change("affinity_reserve", shown) == ("reserve", shown)
    assert to_redis("reserve", shown) == in_redis


@given(given_reserves)
def test_any_reserves_survive_a_round_trip(given_as):
    assert reserves.check_reserves(given_as) is None
    in_redis = reserves.encoded_reserves(given_as)
    assert is_setting("reserve", in_redis)
    assert reserves.encoded_reserves(reserves.shown_reserves(in_redis)) == in_redis
    assert reserves.encoded_reserves(reserves.shown_reserves(in_redis, lower_first=True), lower_first=True) == in_redis
    assert len(reserves.parse_reserves(in_redis)) == sum(map(len, given_as.values()))


def test_lower_first_app_states_reserves_in_its_order():
    settings = Settings(reserve={"pdf": {"6-10": 2, "0": 1, "queued": 3}}, priority_order="lower-first")
    assert shared_settings(settings)["reserve"] == "pdf:0-4=2 pdf:10=1 pdf:queued=3"
    assert from_redis("reserve", "pdf:0-4=2 pdf:10=1", "lower-first") == "pdf:0=1 pdf:6-10=2"


@pytest.mark.parametrize(
    ("text", "class_", "slots"),
    [
        ("pdf:queued=2", [(False, 0), (False, 10)], 2),
        ("pdf:on_demand=1", [(True, 0), (True, 10)], 1),
        ("pdf:0=3", [(False, 0), (True, 0)], 3),
        ("pdf:2-4=25%", [(False, 2), (True, 4)], 3),
        ("pdf:2-4=100%", [(False, 3), (True, 3)], 9),
    ],
)
def test_reserve_covers_a_class_and_counts_slots(text, class_, slots):
    (reserve,) = reserves.parse_reserves(text)
    assert all(reserve.covers(*each) for each in class_)
    assert not reserve.covers("on_demand" not in text, 5) or (reserve.mode is None and reserve.last >= 5)
    assert reserve.slots(9) == slots
    assert f"pdf:{reserve.of_class}={reserve.amount}{'%' * reserve.is_share}" == text


@given(types, types)
def test_reserve_pattern_matches_encoded_types(prefix, rest):
    prefix = prefix.replace("*", "")
    (reserve,) = reserves.parse_reserves(reserves.encoded_reserves({f"{prefix}*": {"0": 1}}))
    assert reserve.concerns(encode_part(prefix + rest))
    (whole,) = reserves.parse_reserves(reserves.encoded_reserves({f"{prefix}.": {"0": 1}}))
    assert not whole.concerns(encode_part(prefix + "x"))


@pytest.mark.parametrize(
    "given_as",
    [
        *({"pdf": 2}, {"pdf": [2]}, {5: {"0": 1}}, {"": {"0": 1}}, {"\ud800": {"0": 1}}, 5, ["pdf:0=1"]),
        *("pdf", "pdf=2", "pdf:queued", ":0=1", "pdf:0=1,excel:0=1", "none pdf:0=1"),
    ],
)
def test_malformed_reserves_are_refused(given_as):
    with pytest.raises(SettingError, match=r"affinity_reserve must be reserves by type and class such as .*, got: "):
        Settings(reserve=given_as)


def test_invalid_class_or_amount_of_a_reserve_is_named(subtests):
    for class_, amount, problem in [
        *((name, 1, f"{name!r} is not a class") for name in ("0-11", "5-2", "11", "idle", "", "-1", "0-", "1-2-3", 0)),
        *(
            ("0", each, f"{each!r} is not a valid amount")
            for each in ("120%", "0%", 0, -1, True, 1.5, "a", None, 10**18, "")
        ),
    ]:
        with subtests.test(str((class_, amount, problem))):
            with pytest.raises(SettingError) as refused:
                Settings(reserve={"pdf": {class_: amount}})
            assert "a class is 'queued', 'on_demand', a priority of 0 to 10 or a range of them" in str(refused.value)
            assert f"; {problem}, got: " in str(refused.value)
            if isinstance(amount, int | str) and not isinstance(amount, bool) and class_ and amount not in ("", 10**18):
                with pytest.raises(SettingError, match="affinity_reserve must be reserves by type and class such as "):
                    parse_change("reserve", f"pdf:{class_}={amount}" if class_ != 0 else "pdf:99=1")


@pytest.mark.parametrize(("name", "default"), [("reserve_patience", "0"), ("key_patience", "30000000")])
def test_patience_settings_are_seconds_or_none(name, default):
    assert shared_settings(Settings())[f"{name}_us"] == default
    assert shared_settings(Settings(**{name: None}))[f"{name}_us"] == "0"
    assert shared_settings(Settings(**{name: 1.5}))[f"{name}_us"] == "1500000"
    assert from_redis(name, "1500000") == 1.5
    assert parse_change(name, "none") == (name, "none")
    assert to_redis(name, "none") == "0"
    for problem in (0, -1, "soon", True):
        accepted = f"affinity_{name} must be None, or a number of seconds above 0, up to 315,360,000"
        with pytest.raises(SettingError, match=accepted):
            Settings(**{name: problem})
