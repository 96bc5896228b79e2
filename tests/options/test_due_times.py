"""``start_within`` and ``deadline``: the accepted values, and the words of a job's field "times"."""

import math
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_affinity import Affinity, OptionError
from celery_affinity.options.affinity import affinity_of_pattern
from celery_affinity.options.due_times import (
    StoredDue,
    absolute_deadline,
    check_within,
    due_words,
    is_deadline,
    read_deadline,
    refuse_fixed_deadline,
    seconds_until,
    stored_due,
)
from celery_affinity.schema.constants import MAX_SIZE
from celery_affinity.schema.job_record import FIELDS, NewJob
from celery_affinity.schema.values import MAX_DURATION_S

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
#: Zones with offsets of up to 24 hours, in minutes or with seconds.
ZONES = st.integers(-86_399, 86_399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
ANY_NUMBER = st.floats(allow_nan=False)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, "30", MAX_DURATION_S + 1, 10**400, [30]])
def test_start_within_is_a_number_of_seconds_above_0(value):
    for set_option in (check_within, lambda value: Affinity(start_within=value)):
        with pytest.raises(OptionError, match=r"start_within must be a number of seconds above 0, up to .*, got: "):
            set_option(value)
    with pytest.raises(OptionError, match="start_within must be a number of seconds above 0"):
        affinity_of_pattern({"start_within": value})


def test_deadline_without_offset_is_refused():
    others = ("2026-12-01T12:00:00", "2026-12-01", "noon", "", "x" * 10_000, math.nan, math.inf, True, {}, 10**400)
    for value in (NOON.replace(tzinfo=None), MAX_DURATION_S + 1, *others):
        assert not is_deadline(value)
        with pytest.raises(
            OptionError, match=r"deadline must be an aware datetime, .* or seconds from the call.*, got: "
        ):
            read_deadline(value)


@given(st.datetimes(timezones=ZONES), st.floats(-1e9, 1e10))
@example(datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), 0)
@example(datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))), 0)
def test_deadline_remains_the_same_time_as_text(deadline, now_s):
    text = absolute_deadline(deadline, now_s)
    assert is_deadline(text)
    assert absolute_deadline(text, now_s + 1) == text
    assert seconds_until(text, now_s) == pytest.approx(deadline.timestamp() - now_s, abs=1e-5)


@given(st.floats(-MAX_DURATION_S, MAX_DURATION_S), st.floats(0, 1e10))
def test_seconds_count_from_the_call(seconds, now_s):
    text = absolute_deadline(seconds, now_s)
    assert seconds_until(text, now_s) == pytest.approx(seconds, abs=1e-5)
    assert seconds_until(text, now_s + 7) == pytest.approx(seconds - 7, abs=1e-5)


def test_repeated_calls_accept_only_seconds():
    for options in ({}, {"deadline": 60}, {"deadline": None}, {"deadline": NOON, "stamped_headers": ["deadline"]}):
        refuse_fixed_deadline(options)
    for deadline in (NOON, NOON.isoformat()):
        with pytest.raises(
            OptionError, match=re.escape(f"seconds from the call, because it is made repeatedly, got: {deadline!r}")
        ):
            refuse_fixed_deadline({"deadline": deadline}, "deadline of x")


@given(*[st.none() | ANY_NUMBER.map(abs), st.none() | ANY_NUMBER, st.none() | ANY_NUMBER.map(abs)])
@example(1e-9, -1e-9, MAX_SIZE)
@example(1e308, -1e308, 1e308)
@example(math.inf, -math.inf, math.inf)
def test_due_words_are_always_a_valid_field(within_s, until_deadline_s, size):
    text = due_words(within_s, until_deadline_s, size)
    assert re.fullmatch(FIELDS["times"].pattern, f"0 {text}".rstrip())
    NewJob("i1", "pdf", "m", due=text).checked()
    assert (text == "") == (within_s is until_deadline_s is size is None)


def test_due_words_have_microseconds_and_millionths():
    assert due_words(30, None, 12) == "w30000000 s12000000"
    assert due_words(0.5, -1.25, None) == "w500000 d-1250000"
    assert due_words(None, 60, 0) == "d60000000 s0"


def test_stored_due_of_a_damaged_field_has_no_values():
    assert stored_due("1700000000000000 w30000000 d1700000060000000 s12000000") == StoredDue(
        1_700_000_000_000_000, 30_000_000, 1_700_000_060_000_000, 12_000_000
    )
    assert stored_due("- s5") == StoredDue(size_millionths=5)
    for damaged in ("", "x", "1 s", "- s5 w3", "- s" + "9" * 30, "- s5 ", "nan", "1e5"):
        assert stored_due(damaged) == StoredDue()
