"""The numbers of the page on capacity are computed."""

import re
from math import factorial

import pytest

from ..support.pages import rows
from ..support.processes import ROOT
from .simulated_fleet import calls_at_random, fleet_of, waits_by_specification_s, waits_s

TEXT = (ROOT / "docs/how-to/scale.md").read_text()
RUN_S, SLOTS, LOAD = 2, 12, 0.8


def table(after):
    found = [[float(cell) for cell in row] for row in rows(TEXT.partition(after)[2])]
    assert found, after
    return found


def mean_wait(slots, busy):
    """Return the mean wait as a multiple of the time in a slot: Erlang's C formula."""
    all_busy = (slots * busy) ** slots / factorial(slots) / (1 - busy)
    some_free = sum((slots * busy) ** number / factorial(number) for number in range(slots))
    return all_busy / (some_free + all_busy) / (slots * (1 - busy))


def test_busy_slots_are_calls_times_seconds():
    for _, per_s, seconds, busy in rows(TEXT):
        assert float(per_s) * float(seconds) == float(busy)


def test_the_table_of_waits_is_computed():
    for slots, *waits in table("random arrivals:"):
        assert waits == [round(mean_wait(int(slots), busy), 2) for busy in (0.5, 0.7, 0.8, 0.9, 0.95)]


def test_the_worked_example_holds():
    assert mean_wait(8, 6 / 8) * RUN_S < 0.5
    assert mean_wait(10, 6 / 10) * RUN_S < 0.1
    assert round(100 * 4 / 6) == 67


def test_the_simulation_is_the_scheduler():
    calls = calls_at_random(150, per_s=LOAD * SLOTS / RUN_S, run_s=RUN_S)
    for specialists, versatile in ((4, 0), (3, 3), (0, 12)):
        fleet = fleet_of(specialists, versatile)
        waits = waits_s(fleet, calls)
        assert waits == waits_by_specification_s(fleet, calls)
        assert max(waits) > 0


@pytest.mark.parametrize("row", table("95 % wait less than, s |\n"), ids=str)
def test_the_table_of_versatile_slots_is_simulated(row):
    slots, specialists, versatile, mean, most = row
    assert slots == 3 * specialists + versatile
    calls = calls_at_random(20_000, per_s=LOAD * SLOTS / RUN_S, run_s=RUN_S)
    waits = sorted(waits_s(fleet_of(int(specialists), int(versatile)), calls))
    assert (round(sum(waits) / len(waits), 1), round(waits[int(0.95 * len(waits))], 1)) == (mean, most)


def test_the_metrics_of_the_page_exist():
    known = (ROOT / "docs/reference/metrics.md").read_text()
    named = {re.sub(r"_(sum|count)$", "", name) for name in re.findall(r"celery_affinity_\w+", TEXT)}
    assert named
    assert [name for name in named if f"`{name}`" not in known] == []
