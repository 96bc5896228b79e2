"""The arithmetic of decayed use is precise, and more use never lowers a tag."""

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
def test_log2_agrees_with_the_standard_library(number):
    assert tags.log2(number) == pytest.approx(math.log2(number), abs=1e-12)


@given(st.floats(-1100, 0))
def test_exp2_agrees_with_the_standard_library(number):
    assert tags.exp2(number) == pytest.approx(2**number, rel=1e-12, abs=1e-300)


@given(half_lives_us, st.lists(st.integers(1, 10**12), min_size=1, max_size=6), st.integers(0, 10**9))
def test_tag_encodes_the_decayed_sum_of_use(half_life_us, used, apart_us):
    tag, now_us, left_us = 0.0, NOW_US, 0.0
    for us in used:
        now_us += apart_us
        left_us = left_us * 2 ** (-apart_us / half_life_us) + us
        before, tag = tag, tags.decayed(tag, us, half_life_us, now_us)
        assert tag >= before
    assert decayed_use_us(tag, half_life_us, now_us) == pytest.approx(left_us, rel=1e-5)
