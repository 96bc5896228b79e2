"""Values that a task may ask for, and values that are refused where a user writes them."""

import copy
import dataclasses
import pickle
import re
import unicodedata
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps, loads

from celery_affinity import Affinity, Exclusive, OptionError, Rate, SettingError
from celery_affinity.options.affinity import affinity_of, as_affinity, check_priority
from celery_affinity.options.type_names import MAX_LENGTH, is_type_name
from celery_affinity.settings.table import Settings

UNSERVABLE = (
    *("", " ", "pdf ", " pdf", "\tpdf", "pdf\n", "pdf,excel", ",", "x" * (MAX_LENGTH + 1), "\ud800"),
    *("pd\tf", "pd\nf", "pdf\0", "\x1bpdf", "pd\x7ff", "pd\x85f", "pdf\u200b", "\ufeffpdf", "pd\u2028f", "\u200dpdf"),
)


def test_invalid_type_is_rejected_at_its_definition(subtests):
    for name in UNSERVABLE:
        with subtests.test(ascii(name)):
            with pytest.raises(OptionError, match="affinity must be the name of a queue that -Q can give"):
                Affinity(name)
            with pytest.raises(SettingError, match="affinity_task_types must be a mapping"):
                Settings(task_types={"proj.*": name})


@given(st.text(min_size=1, max_size=MAX_LENGTH))
def test_valid_types_match_celerys_queue_option(name):
    is_one_queue = name.split(",") == [name]
    begins_and_ends_with_something = name == name.strip() and name == name.strip(" \u200c\u200d")
    assert is_type_name(name) == (is_one_queue and begins_and_ends_with_something and not any(map(_is_unseen, name)))


def _is_unseen(character):
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in "\u200c\u200d"


@pytest.mark.parametrize("name", ["pdf", "two words", "größe", "日本", "में\u200cहिंदी", "a.b-c_d:e/f#g", "%2C", "💾"])
def test_other_queue_names_are_valid_types(name):
    assert Affinity(name).type == name


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"priorty": 5}, "'priorty'; did you mean 'priority'?"),
        ({"tpye": "pdf"}, "'tpye'; did you mean 'type'?"),
        ({"ondemand": True}, "'ondemand'; did you mean 'on_demand'?"),
        ({"exlusive": "city"}, "'exlusive'; did you mean 'exclusive'?"),
        ({"queue": "pdf"}, "'queue'"),
    ],
)
def test_unknown_field_suggests_the_correct_name(named, words):
    with pytest.raises(OptionError) as refusal:
        Affinity(**named)
    names = ", ".join(each.name for each in dataclasses.fields(Affinity) if each.init)
    assert str(refusal.value) == f"Affinity takes {names}, got: {words}"
    _, _, question = words.partition("; ")
    with pytest.raises(OptionError, match="affinity must be a type.*" + re.escape(question)):
        as_affinity(named)


def test_affinity_can_be_pickled_copied_and_replaced():
    asked = Affinity("pdf", priority=3)
    assert pickle.loads(pickle.dumps(asked)) == copy.deepcopy(asked) == asked
    assert replace(asked, type="excel") == Affinity("excel", 3)


def test_key_can_be_text_or_exclusive():
    assert Affinity(exclusive="city:{city}") == Affinity(exclusive=Exclusive("city:{city}"))
    assert as_affinity({"exclusive": {"key": "k", "limit": 4}}) == Affinity(exclusive=Exclusive("k", 4))
    asked = Affinity("pdf", exclusive=Exclusive("{city}", keep_order=True))
    assert pickle.loads(pickle.dumps(asked)) == copy.deepcopy(asked) == as_affinity(loads(dumps(asked))) == asked
    rated = Affinity(rate=Rate("100/m", "{tenant}"))
    assert as_affinity(loads(dumps(rated))) == rated
    assert (asked.keys, rated.keys, Affinity("pdf").keys) == ((asked.exclusive,), (rated.rate,), ())


def test_affinity_accepts_a_rate_with_an_exclusive_key():
    both = Affinity(exclusive="city", rate=Rate("1/s", "city"))
    assert both.keys == (Rate("1/s", "city"), Exclusive("city"))
    assert as_affinity(loads(dumps(both))) == both
    with pytest.raises(OptionError, match=r"exclusive must be a key .str. or an Exclusive, got: True"):
        Affinity(exclusive=True)
    for options in ({"exclusive": ["a", "b"]}, {"rate": (Rate("1/s", "a"), Rate("2/s", "b"))}):
        with pytest.raises(OptionError, match=r"share a key .*, limit the type, .*affinity_limits.* affinity_reserve"):
            Affinity("pdf", **options)
    with pytest.raises(OptionError, match=r"rate must be a Rate, such as .*, got: '100/m'"):
        Affinity(rate="100/m")


def test_task_attributes_set_affinity_and_on_demand():
    assert affinity_of(SimpleNamespace()) == Affinity()
    assert affinity_of(SimpleNamespace(affinity="pdf", on_demand=True)) == Affinity("pdf", on_demand=True)
    assert affinity_of(SimpleNamespace(affinity=Affinity("pdf", 2, False), on_demand=True)) == Affinity("pdf", 2, False)
    both = affinity_of(SimpleNamespace(affinity=Affinity("pdf", exclusive="city"), on_demand=True))
    assert both == Affinity("pdf", on_demand=True, exclusive="city")
    assert affinity_of(SimpleNamespace(on_demand=lambda: "a method of the user's")) == Affinity()
    with pytest.raises(OptionError, match="on_demand must be True or False, got: 'yes'"):
        affinity_of(SimpleNamespace(on_demand="yes"))


@pytest.mark.parametrize(
    ("given_", "priority"), [("5", 5), (5.0, 5), (True, 1), (False, 0), (0, 0), (10, 10), ("10", 10)]
)
def test_priority_accepts_celerys_whole_numbers(given_, priority):
    assert check_priority(given_) == priority
    asked = Affinity("pdf", priority=given_)
    assert (asked.priority, type(asked.priority)) == (priority, int)


@pytest.mark.parametrize(
    "given_", [-1, 11, "11", 5.5, "5.5", "high", "", float("nan"), float("inf"), [], {}, b"5", 10**400]
)
def test_invalid_priority_is_rejected(given_):
    with pytest.raises(OptionError, match="priority must be a whole number from 0 to 10"):
        check_priority(given_)
