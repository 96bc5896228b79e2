"""Processes detect steps of the server's clock by comparing its time with their own monotonic clocks."""

from hypothesis import given
from hypothesis import strategies as draw

from celery_affinity.clock import SMALLEST_S, ClockStep, ClockWatch, ServerTime

SECOND_US = 1_000_000
START_S = 1_800_000_000

short_s = draw.floats(0.0, 2.0)
ticks = draw.lists(draw.tuples(draw.integers(0, 2), short_s, draw.floats(0.0, 40.0), short_s), min_size=2, max_size=30)
steps_s = draw.floats(SMALLEST_S * 2, 1e6).flatmap(lambda size_s: draw.sampled_from([size_s, -size_s]))


class Fleet:
    """Processes that tick one server. Each process has its own monotonic clock."""

    def __init__(self):
        self.now_s, self.ahead_s, self.ticked_us = 0.0, 0.0, None
        self.watches = [ClockWatch() for _ in range(3)]
        self.suspended_s = [0.0, 17.0, 400.0]

    def tick(self, process, pause_s=1.0, way_there_s=0.0, way_back_s=0.0):
        """Tick after a pause; the call and its reply take some time. Return the detected step."""
        self.now_s += pause_s
        began_s = self.now_s - self.suspended_s[process]
        self.now_s += way_there_s
        now_us = round((START_S + self.now_s + self.ahead_s) * SECOND_US)
        self.now_s += way_back_s
        time = ServerTime(now_us, began_s, self.now_s - self.suspended_s[process], self.ticked_us)
        self.ticked_us = now_us
        return self.watches[process].step(time)


@given(ticks)
def test_slow_replies_and_stopped_processes_are_not_reported_as_steps(story):
    fleet = Fleet()
    assert [found for process, *times in story if (found := fleet.tick(process, *times))] == []


@given(ticks, steps_s, short_s, short_s)
def test_each_step_is_reported_once_with_its_size(story, size_s, way_there_s, way_back_s):
    fleet = Fleet()
    for process in (0, 1, 2):
        fleet.tick(process)
    fleet.ahead_s += size_s
    first, *others = [
        fleet.tick(process, pause_s, min(way_there_s, way_s), min(way_back_s, end_s))
        for process, pause_s, way_s, end_s in story
    ]
    assert first is not None
    assert abs(first.size_us / SECOND_US - size_s) <= SMALLEST_S
    assert others == [None] * len(others)


def test_suspended_machine_reports_no_step_while_others_tick():
    fleet = Fleet()
    for process in (0, 1):
        fleet.tick(process)
    for _ in range(3600):
        fleet.tick(1)
    fleet.suspended_s[0] += 3600.0
    assert fleet.tick(0) is None


def test_new_process_reports_a_last_tick_in_the_future():
    fleet = Fleet()
    fleet.tick(0)
    fleet.ahead_s = -3600.0
    assert fleet.tick(1) == ClockStep(-3599 * SECOND_US, fleet.ticked_us)
    assert fleet.tick(1) is None


def test_slow_clock_correction_is_not_reported_as_a_step():
    fleet = Fleet()
    found = []
    for _ in range(200):
        fleet.ahead_s += 0.05
        found.append(fleet.tick(0, 100.0))
    assert found == [None] * 200


@given(draw.integers(-(2**70), 2**70))
def test_damaged_time_of_the_last_tick_is_ignored(ticked_us):
    fleet = Fleet()
    for _ in range(2):
        fleet.ticked_us = ticked_us
        found = fleet.tick(0)
        assert found is None or found == ClockStep.parse(found.text)
    assert fleet.tick(0) is None


@given(draw.one_of(draw.text(), draw.from_regex(r"[0-9]{1,200} -?[0-9]{1,200}")))
def test_parse_accepts_any_text_without_an_error(text):
    step = ClockStep.parse(text)
    assert step is None or ClockStep.parse(step.text) == step
