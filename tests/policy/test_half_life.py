"""The arithmetic of use that is forgotten by half in a time: right to many digits, and never less by more use."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_affinity.policy.score import decayed_use_us

from ..conformance.reference import tags

US = 1_000_000
NOW_US = 1_800_000_000 * US
half_lives_us = st.sampled_from([US, 60 * US, 3600 * US, 10**15])


@given(st.floats(1e-9, 1e18))
def test_logarithms_are_those_of_the_standard_library(number):
    assert tags.log2(number) == pytest.approx(math.log2(number), abs=1e-12)


@given(st.floats(-1100, 0))
def test_powers_are_those_of_the_standard_library(number):
    assert tags.exp2(number) == pytest.approx(2**number, rel=1e-12, abs=1e-300)


@given(half_lives_us, st.lists(st.integers(1, 10**12), min_size=1, max_size=6), st.integers(0, 10**9))
def test_a_tag_says_what_is_left_of_all_that_was_used(half_life_us, used, apart_us):
    tag, now_us, left_us = 0.0, NOW_US, 0.0
    for us in used:
        now_us += apart_us
        left_us = left_us * 2 ** (-apart_us / half_life_us) + us
        before, tag = tag, tags.decayed(tag, us, half_life_us, now_us)
        assert tag >= before
    assert decayed_use_us(tag, half_life_us, now_us) == pytest.approx(left_us, rel=1e-5)


@given(half_lives_us)
def test_what_is_forgotten_is_the_slot_time_of_a_half_life_ten_half_lives_ago(half_life_us):
    tag = tags.decayed(0, half_life_us, half_life_us, NOW_US)
    assert tags.least_used(half_life_us, NOW_US + 10 * half_life_us) == pytest.approx(tag, abs=1e-6)
