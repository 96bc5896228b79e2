"""What a task may ask for: values that are taken, and those that are refused where they are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_affinity import Affinity, OptionError, SettingError
from celery_affinity.affinity import check_priority
from celery_affinity.settings import Settings
from celery_affinity.type_name import MAX_LENGTH, is_type

UNSERVABLE = ("", " ", "pdf ", " pdf", "\tpdf", "pdf\n", "pdf,excel", ",", "x" * (MAX_LENGTH + 1), "\ud800")


@pytest.mark.parametrize("name", UNSERVABLE)
def test_a_type_that_no_worker_can_name_is_refused_where_it_is_written(name):
    with pytest.raises(OptionError, match="affinity must be the name of a queue that -Q can give"):
        Affinity(name)
    with pytest.raises(SettingError, match="affinity_task_types must be a mapping"):
        Settings(task_types={"proj.*": name})


@given(st.text(min_size=1, max_size=MAX_LENGTH))
def test_a_type_is_what_celery_makes_of_one_queue_on_the_command_line(name):
    is_one_queue = name.split(",") == [name]
    assert is_type(name) == (is_one_queue and name == name.strip() and _has_utf8(name))


def _has_utf8(name):
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in name)


@pytest.mark.parametrize(
    ("given_", "priority"), [("5", 5), (5.0, 5), (True, 1), (False, 0), (0, 0), (10, 10), ("10", 10)]
)
def test_a_priority_is_whatever_stock_celery_takes_for_a_whole_number(given_, priority):
    assert check_priority(given_) == priority
    asked = Affinity("pdf", priority=given_)
    assert (asked.priority, type(asked.priority)) == (priority, int)


@pytest.mark.parametrize(
    "given_", [-1, 11, "11", 5.5, "5.5", "high", "", float("nan"), float("inf"), [], {}, b"5", 10**400]
)
def test_a_priority_that_is_no_whole_number_from_0_to_10_is_refused(given_):
    with pytest.raises(OptionError, match="priority must be a whole number from 0 to 10"):
        check_priority(given_)
