"""The slot time of a job, derived from the times of workers and the order of the server's claims."""

from celery_affinity.lab.scenario import slot_time_us
from celery_affinity.lab.trace import Trace

from ..support.lab_scenarios import S, traced, worker

MS = 1_000


def held(*jobs, slots=1):
    """Return the slot time of each job in ms."""
    slot_times = slot_time_us(Trace(100 * S, (worker("w", slots=slots),), jobs))
    return [slot_times[nth] / MS for nth in sorted(slot_times)]


#: Slot times in ms on one slot, and the jobs: (arrival, claim, end) in s, and other times in µs.
CASES = {
    "from the claim to the end": ([3000], [((1, 2, 5), {"started_us": 3 * S})]),
    "from the arrival if a slot was free": ([1000], [((1, 1.002, 2), {})]),
    "until the next claim, which the report of the end causes": ([1004, 996], [((1, 1, 2), {}), ((1.5, 2.004, 3), {})]),
    "until the worker notices that its slot is free": (
        [1010, 991, 902],
        [
            ((1, 1, 2), {"freed_us": 2_008_000}),
            ((1.5, 2.01, 3), {"freed_us": 3_001_000}),
            ((1.5, 3.1, 4), {"freed_us": 4_002_000}),
        ],
    ),
    "until a claim whose reply arrived just after it": (
        [1008, 992],
        [((1, 1, 2), {"freed_us": 2_008_500}), ((1.5, 2.008, 3), {"freed_us": 3_000_000})],
    ),
    "not until a job that arrived just after the slot was free": (
        [1001, 998.3],
        [((1, 1, 2), {"freed_us": 2_001_000}), ((2.0017, 2.0017, 3), {"freed_us": 3_000_000})],
    ),
    "from a late claim of a free slot, since the job was blocked": ([901], [((1, 1.1, 2), {"freed_us": 2_001_000})]),
    "not until a much later claim, since its job was blocked": ([1000, 500], [((1, 1, 2), {}), ((1.5, 2.5, 3), {})]),
    "from the end of the previous job for a prefetched claim": ([2000, 1000], [((0, 1, 3), {}), ((0, 2, 4), {})]),
    "from the start of the trace, and unknown without an end": (
        [5000.001],
        [((-9, -4, 5), {}), ((1, 6, None), {}), ((0, None, None), {})],
    ),
}


def test_slot_time_on_one_slot(subtests):
    for case, (expected_ms, jobs) in CASES.items():
        with subtests.test(case):
            assert held(*(traced("pdf", *times, **fields) for times, fields in jobs)) == expected_ms


def test_claim_with_a_lower_fence_is_earlier():
    jobs = [traced(since_s=0, claimed_s=1, ended_s=3, fence=1), traced(since_s=0, claimed_s=0.9, ended_s=2, fence=2)]
    assert held(*jobs, slots=2) == [2100.001, 1100]


def test_each_of_several_slots_has_its_own_jobs():
    times = [(0, 0, 4), (0, 0, 2), (1, 2.002, 5), (1, 4.002, 5)]
    assert held(*(traced("pdf", *each) for each in times), slots=2) == [4002, 2002, 2998, 998]
