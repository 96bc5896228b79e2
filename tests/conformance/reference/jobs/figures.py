"""What observers are told of the jobs of a type: counts, and times by powers of two."""

from collections.abc import Mapping

from celery_affinity.rules.protocol import AVERAGED_OVER

from ..model import Cohort


def add(cohort: Cohort, type_: str, grown: Mapping[str, int]) -> None:
    """Add to the figures of a type: field -> by how much it grows."""
    cohort.figures[type_].update(grown)


def average(cohort: Cohort, type_: str, number: int, sum_us: int) -> None:
    """Have the moving average of a type's times in a slot go by *number* more, whose sum is *sum_us*.

    average + (sum - number * average) / max(number, `AVERAGED_OVER`), rounded down; the first average is sum / number.
    """
    before_us = cohort.durations_us.get(type_)
    if before_us is None:
        cohort.durations_us[type_] = sum_us // number
    else:
        cohort.durations_us[type_] = before_us + (sum_us - number * before_us) // max(number, AVERAGED_OVER)
