"""Recurring calls as an app says them: what is accepted, and what is refused."""

import math
import re

import pytest

from celery_affinity.errors import OptionError, SettingError
from celery_affinity.options.recurring import Recurring, as_recurring, check_name
from celery_affinity.settings.table import Settings

HH = {"task": "proj.reroute", "kwargs": {"city": "HH"}, "stale_after": 300}


def test_a_setting_says_calls_by_their_names():
    found = Settings(recurring={"hh": HH, "b": Recurring("proj.reroute", stale_after=1, args=["B"])}).recurring
    assert found["hh"] == Recurring("proj.reroute", kwargs={"city": "HH"}, stale_after=300)
    assert found["b"].args == ["B"]
    assert found["hh"].since == "enqueue"


def test_a_call_that_cannot_recur_is_refused_with_what_is_accepted(subtests):
    for said, words in [
        (
            {**HH, "stale_after": 0.99},
            "stale_after must be a number of seconds, 1 or more, up to 315,360,000",
        ),
        ({**HH, "stale_after": math.nan}, "stale_after must be a number of seconds"),
        ({**HH, "stale_after": math.inf}, "stale_after must be a number of seconds"),
        ({**HH, "stale_after": True}, "stale_after must be a number of seconds"),
        ({**HH, "stale_after": "300"}, "stale_after must be a number of seconds"),
        ({**HH, "since": "start"}, "since must be 'enqueue' or 'end', got: 'start'"),
        ({**HH, "since": ["end"]}, "since must be 'enqueue' or 'end', got: ['end']"),
        ({**HH, "task": ""}, "task of a recurring call must be the name of a task, got: ''"),
        ({**HH, "args": "HH"}, "args of a recurring call must be a list or a tuple, got: 'HH'"),
        ({**HH, "kwargs": ["HH"]}, "kwargs of a recurring call must be a mapping of names to values, got: ['HH']"),
        ({**HH, "options": {1: 2}}, "options of a recurring call must be a mapping of names to values, got: {1: 2}"),
        ({**HH, "stale_afer": 1}, "Recurring takes task, stale_after, args, kwargs, options, since, got: 'stale_afer'"),
        ({"task": "proj.reroute"}, "a recurring call must have a stale_after: a mapping such as"),
        ({"stale_after": 3}, "a recurring call must have a task: a mapping such as"),
        (300, "a recurring call must be a mapping such as"),
        ({1: 2}, "a recurring call must be a mapping such as"),
    ]:
        with subtests.test(str((said, words))):
            with pytest.raises(OptionError, match=re.escape(words)):
                as_recurring(said)
            with pytest.raises(SettingError, match=re.escape(f"affinity_recurring['hh']: {words}")):
                Settings(recurring={"hh": said})


@pytest.mark.parametrize("value", [[HH], {"": HH}, {1: HH}, None])
def test_a_setting_that_is_no_mapping_of_names_is_refused(value):
    with pytest.raises(SettingError, match="affinity_recurring must be a mapping of names to calls, such as"):
        Settings(recurring=value)


def test_a_name_is_a_text():
    assert check_name("every hour") == "every hour"
    for name in ("", None, 3, b"x", "x" * 256, "\ud800"):
        with pytest.raises(OptionError, match="name of a recurring call must be a text of 1 to 255 characters"):
            check_name(name)
