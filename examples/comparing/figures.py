"""Compute percentiles, and format seconds and comparisons of two numbers as text."""

import math

#: Two times are called the same if they differ by less than this fraction, or by less than SAME_S seconds.
SAME = 0.10
SAME_S = 0.02


def percentile(values: list[float], percent: int) -> float:
    """Return the nearest-rank percentile of sorted values: the smallest value that *percent* of them do not exceed."""
    return values[max(0, math.ceil(len(values) * percent / 100) - 1)]


def compared(stock: float, ours: float) -> str:
    """Return a text such as '12 times as long on stock Celery' or '30 percent shorter on stock Celery'."""
    ratio = max(stock, 0.001) / max(ours, 0.001)
    if abs(ratio - 1) < SAME or abs(stock - ours) < SAME_S:
        return "about the same on both"
    if ratio >= 2:
        return f"{ratio:.0f} times as long on stock Celery"
    return f"{100 * abs(ratio - 1):.0f} percent {'longer' if ratio > 1 else 'shorter'} on stock Celery"


def seconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.1f}"
