"""Which slot moves to which cohort: the rule, and that the rule alone leaves no slot idle beside work, nor swings."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from celery_affinity.policy.slot_math import PATIENCE_LOOKS, CohortLoad, divide_slots, donor, receiver


def seat(cohort="a", slots=0, free=0, waiting=0, in_vain=0):
    return CohortLoad(cohort, slots, free, waiting, in_vain)


def test_an_idle_slot_goes_to_the_cohort_where_jobs_wait():
    seats = [seat("a", 2, 2), seat("b", 1, 0, 5), seat("c", 3, 0)]
    assert (donor(seats).cohort, receiver(seats).cohort) == ("a", "b")


def test_nothing_moves_while_nobody_lacks_a_slot():
    assert donor([seat("a", 2, 2), seat("b", 2, 0)]) is None
    assert donor([seat("a", 2, 2), seat("b", 2, 1, 5)]) is None, "its jobs wait for something else than a slot"


def test_a_slot_on_its_way_counts():
    seats = [seat("a", 3, 3), seat("b", 1, 0, 1)]
    assert donor(seats) is not None
    assert donor(seats, coming=1) is None


def test_busy_cohorts_come_to_have_equally_many_slots():
    assert donor([seat("a", 4, 0, 9), seat("b", 1, 0, 9)]).cohort == "a"
    assert donor([seat("a", 3, 0, 9), seat("b", 2, 0, 9)]) is None


def test_a_cohort_without_a_slot_gets_one_that_is_in_use_after_a_while():
    busy = seat("a", 1, 0, 9)
    assert donor([busy, seat("b", 0, 0, 9, PATIENCE_LOOKS - 1)]) is None
    assert donor([busy, seat("b", 0, 0, 9, PATIENCE_LOOKS)]).cohort == "a"


def test_slots_are_divided_evenly_at_the_start():
    assert divide_slots(5, ["a", "b", "c"]) == {"a": 2, "b": 2, "c": 1}


_SEATS = st.lists(
    st.builds(
        lambda slots, claims, waiting, in_vain: CohortLoad("", slots, slots - claims, waiting, in_vain),
        st.integers(0, 6),
        st.integers(0, 6),
        st.integers(0, 9),
        st.integers(0, 20),
    ),
    min_size=1,
    max_size=4,
).map(lambda seats: [replace(each, cohort=str(at)) for at, each in enumerate(seats)])


@given(_SEATS)
def test_moves_end_keep_the_number_of_slots_and_leave_none_idle_beside_work(seats):
    total = sum(each.slots for each in seats)
    for _ in range(100):
        of = donor(seats)
        if of is None:
            break
        to = receiver(seats)
        assert of.slots > 0
        assert of is not to
        seats = [each.plus(-1) if each is of else each.plus(1) if each is to else each for each in seats]
        assert sum(each.slots for each in seats) == total
        assert all(each.slots >= 0 for each in seats)
    else:
        raise AssertionError("the slots are moved to and fro")
    if any(each.lacks for each in seats):
        assert not any(each.is_idle for each in seats)
