"""The output of ``celery affinity lab optimum`` for people."""

from ...lab.optimum import Optimum
from ..words import table
from .text_of_waits import seconds

_HEAD = ("schedule", "mean weighted wait", "of the upper bound", "of the lower bound")


def optimum(found: Optimum) -> str:
    waits = [
        ("recorded", found.recorded_s),
        ("replayed", found.replayed_s),
        ("upper bound: the best schedule found", found.upper_s),
        (f"lower bound: {found.bound}", found.lower_s),
    ]
    rows = [
        (name, seconds(wait_s), _times(wait_s, found.upper_s), _times(wait_s, found.lower_s))
        for name, wait_s in waits
        if wait_s is not None
    ]
    left_out = f"; {found.left_out:,} left out, which some schedule did not claim" if found.left_out else ""
    return f"{found.jobs:,} jobs{left_out}\n\n{table(_HEAD, rows)}\n\n{_lower(found)}\n{_sentence(found)}"


def _times(wait_s: float, bound_s: float) -> str:
    return "-" if bound_s <= 0 else f"{wait_s / bound_s:.2f}"


def _sentence(found: Optimum) -> str:
    if found.replayed_s <= 0:
        return "No job waits in the replay: there is nothing to improve."
    if found.replayed_at_most is None:
        return "The lower bound says nothing: perhaps no job needs to wait."
    low, high = found.replayed_at_least or 1, found.replayed_at_most
    return f"The replayed schedule waits between {low:.2f} and {high:.2f} times as long as the best possible one."


def _lower(found: Optimum) -> str:
    """Return the lower bounds, of which the highest counts."""
    said = {**found.lower_bounds_s}
    prices = f"prices in {found.bins:,} steps of {seconds(found.bin_s)}: {seconds(max(0.0, said.pop('prices')))}"
    others = [f"{name}: {seconds(max(0.0, bound_s))}" for name, bound_s in said.items() if bound_s > 0]
    return f"Lower bounds: {'; '.join([prices, *others])}."
