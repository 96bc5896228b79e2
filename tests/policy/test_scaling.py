import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_affinity.policy.slot_math import TypeLoad, wanted_slots


@pytest.mark.parametrize(
    ("loads", "running", "wanted"),
    [
        ([], 0, 0),
        ([TypeLoad(100, 0, 3.0)], 0, 10),  # 300 s of work in 30 s
        ([TypeLoad(100, 10, 3.0)], 10, 11),
        ([TypeLoad(0, 10, 3600.0)], 10, 10),  # no more slots than jobs
        ([TypeLoad(5, 10, 3600.0)], 10, 15),
        ([TypeLoad(0, 10, 0.1)], 10, 10),  # never below what runs
        ([TypeLoad(90, 0, None)], 0, 3),  # unknown length: one second per job
        ([TypeLoad(10, 0, 3.0), TypeLoad(10, 0, 6.0)], 0, 3),
        ([TypeLoad(100 / 3, 0, 0.9)], 0, 1),
    ],
)
def test_wanted_slots_finish_the_work_within_30_s(loads, running, wanted):
    assert wanted_slots(loads, running, 30.0) == wanted


@given(st.integers(0, 1000), st.integers(0, 1000), st.floats(0.01, 1e5), st.floats(5e-324, 1e4))
@example(1, 0, 1.0, 5e-324)
def test_wanted_slots_stay_between_running_and_all_jobs(waiting, running, average_s, target_s):
    wanted = wanted_slots([TypeLoad(waiting, running, average_s)], running, target_s)
    assert running <= wanted <= waiting + running
