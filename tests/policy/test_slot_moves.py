"""The rule that moves slots between cohorts leaves no slot idle while jobs wait, and does not oscillate."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from celery_affinity.policy.slot_math import PATIENCE_LOOKS, CohortLoad, divide_slots, donor, receiver


def load(cohort="a", slots=0, free=0, waiting=0, in_vain=0):
    return CohortLoad(cohort, slots, free, waiting, in_vain)


def test_idle_slot_moves_to_a_cohort_with_waiting_jobs():
    loads = [load("a", 2, 2), load("b", 1, 0, 5), load("c", 3, 0)]
    assert (donor(loads).cohort, receiver(loads).cohort) == ("a", "b")


def test_no_slot_moves_while_no_cohort_lacks_one():
    assert donor([load("a", 2, 2), load("b", 2, 0)]) is None
    assert donor([load("a", 2, 2), load("b", 2, 1, 5)]) is None, "its jobs do not wait for a slot"


def test_slot_being_moved_is_counted():
    loads = [load("a", 3, 3), load("b", 1, 0, 1)]
    assert donor(loads) is not None
    assert donor(loads, coming=1) is None


def test_slots_of_busy_cohorts_become_equal():
    assert donor([load("a", 4, 0, 9), load("b", 1, 0, 9)]).cohort == "a"
    assert donor([load("a", 3, 0, 9), load("b", 2, 0, 9)]) is None


def test_cohort_without_slots_gets_a_busy_one_after_patience():
    busy = load("a", 1, 0, 9)
    assert donor([busy, load("b", 0, 0, 9, PATIENCE_LOOKS - 1)]) is None
    assert donor([busy, load("b", 0, 0, 9, PATIENCE_LOOKS)]).cohort == "a"


def test_slots_are_divided_evenly_at_the_start():
    assert divide_slots(5, ["a", "b", "c"]) == {"a": 2, "b": 2, "c": 1}


_LOADS = st.lists(
    st.builds(
        lambda slots, claims, waiting, in_vain: CohortLoad("", slots, slots - claims, waiting, in_vain),
        st.integers(0, 6),
        st.integers(0, 6),
        st.integers(0, 9),
        st.integers(0, 20),
    ),
    min_size=1,
    max_size=4,
).map(lambda loads: [replace(each, cohort=str(at)) for at, each in enumerate(loads)])


@given(_LOADS)
def test_moves_end_and_leave_no_needed_slot_idle(loads):
    total = sum(each.slots for each in loads)
    for _ in range(100):
        giver = donor(loads)
        if giver is None:
            break
        taker = receiver(loads)
        assert giver.slots > 0
        assert giver is not taker
        loads = [each.plus(-1) if each is giver else each.plus(1) if each is taker else each for each in loads]
        assert sum(each.slots for each in loads) == total
        assert all(each.slots >= 0 for each in loads)
    else:
        raise AssertionError("the slots oscillate")
    if any(each.lacks for each in loads):
        assert not any(each.is_idle for each in loads)
