"""How long each job of a trace had its slot: from its claim until the slot could have the next one.

That is longer than the job ran: the job's way to its worker, and the worker's word that it has ended, take some time.
A replay in which a slot is free at once would drift away from what was recorded.
"""

from array import array
from bisect import bisect_right, insort
from collections.abc import Sequence

from .trace import Trace, TracedJob

#: Longest time, µs, from the end of a job to the next claim of its slot that is taken for the worker's word under way:
#: after a longer one something else kept the next job back. *Known*: the trace says when the worker had the answer to
#: its word, and the job that came with the answer was claimed at that moment.
_LATEST_WORD_US, _LATEST_KNOWN_US = 250_000, 2_000

#: Time, µs, from which jobs have their slots that had them before the trace began: just before all that comes at 0.
HELD_FROM_US = -1

#: Before everything, µs.
_EVER = -(1 << 62)


def held_us(trace: Trace) -> dict[int, int]:
    """Return how long each job that was claimed, and ended, had its slot, µs, by its place in the trace's jobs.

    What was before the trace does not count. A job that was claimed ahead has its slot from when that was free.
    """
    slots: dict[str, int] = {}
    for each in trace.workers:
        slots[each.name] = max(each.slots, slots.get(each.name, 0))
    in_order, at_us = _in_order(trace.jobs)
    claimed: dict[str, list[int]] = {}
    for nth in in_order:
        job = trace.jobs[nth]
        if job.worker in slots and job.took_us is not None:
            claimed.setdefault(job.worker, []).append(nth)
    found: dict[int, int] = {}
    for name, claims in claimed.items():
        _on_one_worker(trace.jobs, claims, at_us, slots[name], found)
    return found


def _in_order(jobs: Sequence[TracedJob]) -> tuple[list[int], Sequence[int]]:
    """Return the jobs that were claimed, in the order of the claims; and the time of the claim, µs, of each job.

    Workers say when a job came to them, the server counts claims: one that was counted before another was earlier.
    """
    numbers = [nth for nth, job in enumerate(jobs) if job.claimed_us is not None]
    numbers.sort(key=lambda nth: jobs[nth].claimed_us or 0)
    numbers.sort(key=lambda nth: jobs[nth].fence or 0)
    at_us, latest_us = array("q", bytes(8 * len(jobs))), -_EVER  # of a million jobs a list would take 40 MB
    for nth in reversed(numbers):
        claimed_us = jobs[nth].claimed_us or 0
        latest_us = latest_us - 1 if claimed_us > latest_us else claimed_us
        at_us[nth] = latest_us if jobs[nth].fence else claimed_us
    return numbers, at_us


def _on_one_worker(
    jobs: Sequence[TracedJob], claims: Sequence[int], at_us: Sequence[int], slots: int, found: dict[int, int]
) -> None:
    free: list[tuple[int, int]] = [(_EVER, -1)] * max(1, slots)  # since when, and the job before; in order
    for nth in claims:
        job, claimed_us = jobs[nth], at_us[nth]
        place = max(0, bisect_right(free, claimed_us, key=lambda slot: slot[0]) - 1)
        is_only_one = place == 0
        free_us, before = free.pop(place)  # the slot that was free last: its release is what claimed the job
        begun_us = max(claimed_us, free_us)
        if free_us <= job.since_us and job.freed_us is None and claimed_us - job.since_us <= _LATEST_WORD_US:
            begun_us = job.since_us  # it found a free slot as it came
        elif job.since_us > free_us:
            begun_us = claimed_us  # it came to a free slot: its own publish brought it, and no end
        elif before >= 0 and is_only_one and _is_one_moment(jobs[before], claimed_us - free_us):
            found[before] += claimed_us - free_us  # the server heard of the end, and gave the job, at once
            begun_us = claimed_us
        freed_us = max(job.freed_us or job.ended_us or 0, begun_us)
        found[nth] = freed_us - max(HELD_FROM_US, begun_us)
        insort(free, (freed_us, nth))


def _is_one_moment(job: TracedJob, later_us: int) -> bool:
    """Return whether a claim that came *later_us* than the end of *job* was brought by the word of that end."""
    return 0 < later_us <= _LATEST_WORD_US if job.freed_us is None else abs(later_us) <= _LATEST_KNOWN_US
