"""Due times and head starts; the Lua of ``lua/jobs/due_times.lua`` must equal it."""

import math

from .model import Cohort, Job

_LIMIT = 10**15


def _setting(cohort: Cohort, name: str, otherwise: float) -> float:
    """Return a setting as a number. Another client may have written anything."""
    try:
        value = float(cohort.settings.get(name))
    except ValueError:
        return otherwise
    return value if 0 <= value <= _LIMIT else otherwise


def _words(text: str) -> dict[str, int]:
    """Return the numbers of a job's words by letter."""
    return {word[0]: int(word[1:]) for word in text.split()}


def may_stretch(cohort: Cohort) -> bool:
    """Return True if run times give jobs a head start."""
    return _setting(cohort, "stretch", 0) > 0


def settings_words(cohort: Cohort) -> str:
    """Return the settings of due times, or "" if they have their defaults."""
    target_us, stretch = _setting(cohort, "target_wait_us", 256_000_000), _setting(cohort, "stretch", 0)
    return "" if (target_us, stretch) == (256_000_000, 0) else f"{target_us:.17g}/{stretch:.17g}"


def head_start(cohort: Cohort, base_us: float, due_us: float) -> int:
    """Return the head start of a job that becomes pending at *base_us* and is due at *due_us*."""
    target_us = _setting(cohort, "target_wait_us", 256_000_000)
    return math.floor(max(0.0, min(target_us, base_us + target_us - due_us)))


def renew(cohort: Cohort, job: Job, text: str, *, stretches: bool) -> None:
    """Set the due time and the head start of *job* when it becomes pending at its enqueue time.

    *text*: its words, with an absolute deadline.
    """
    numbers, base_us, due_us = _words(text), float(job.enqueued_us), None
    if "w" in numbers:
        due_us = base_us + numbers["w"]
    if "d" in numbers:
        expected_us, error = _expected_us(cohort, job, numbers)
        latest_us = float(numbers["d"]) - (expected_us or 0) * (1 + error)
        due_us = latest_us if due_us is None else min(due_us, latest_us)
    job.due, job.own_due_us = text, None if due_us is None else int(f"{max(0, due_us):.0f}")
    stretch = _setting(cohort, "stretch", 0) if stretches else 0
    if due_us is None and stretch:
        expected_us, _ = _expected_us(cohort, job, numbers)
        due_us = None if expected_us is None else base_us + stretch * expected_us
    job.head_us = 0 if due_us is None else head_start(cohort, base_us, due_us)


def split(text: str, now_us: int) -> str:
    """Return the words of a message with an absolute deadline instead of the time until it."""
    return " ".join(
        f"d{max(0.0, float(now_us) + float(word[1:])):.0f}" if word[0] == "d" else word for word in text.split()
    )


def _expected_us(cohort: Cohort, job: Job, numbers: dict[str, int]) -> tuple[float | None, float]:
    """Return the expected run time, None if it is unknown, and its typical error."""
    learned = cohort.run_times.get(job.task_name)
    if learned is not None:
        return learned.expected_us(numbers["s"] / 1000000 if "s" in numbers else None), learned.typical_error
    return cohort.durations_us.get(job.type), 0.0
