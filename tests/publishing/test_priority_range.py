"""A priority outside of 0 to 10 is clamped, in every place that can set it, and a warning names the place."""

import logging
from decimal import Decimal

import pytest
from celery import chain, group
from celery.beat import ScheduleEntry, Scheduler
from hypothesis import given
from hypothesis import strategies as st

from celery_affinity import Affinity, publish_many
from celery_affinity.errors import OptionError
from celery_affinity.log_limit import LIMIT
from celery_affinity.options.affinity import as_affinity, clamp_priority, whole_priority
from celery_affinity.publishing import option_checks

from ..support.stamped import published

#: Number -> clamped priority.
OUTSIDE = {255: 10, -1: 0, "11": 10, "-3": 0, 256.0: 10, -(10**400): 0, 1e300: 10, Decimal("1E+999999999"): 10}

#: Values that are not whole numbers.
REFUSED = ["high", "", "5.5", 5.5, 11.5, float("nan"), float("inf"), [], {}, b"5", "9" * 5000, Decimal("NaN"), object()]


@pytest.fixture(autouse=True)
def no_warning_was_given(monkeypatch):
    monkeypatch.setattr(option_checks, "_warned", set())


def task(app, name="proj.plain", **options):
    def nothing():
        pass

    return app.task(name=name, shared=False, **options)(nothing)


def lanes(app):
    return [lane for _, lane, *_ in published(app)]


def warnings_in(caplog):
    return [each.getMessage() for each in caplog.records if "priority" in each.getMessage()]


def test_whole_number_of_any_size_becomes_the_nearest_priority():
    for value, priority in OUTSIDE.items():
        assert clamp_priority(whole_priority(value)) == priority, value


def test_value_that_is_not_a_whole_number_is_refused():
    for value in REFUSED:
        with pytest.raises(OptionError, match="priority must be a whole number from 0 to 10"):
            whole_priority(value)


@given(
    st.integers()
    | st.floats()
    | st.decimals()
    | st.text()
    | st.from_regex(r"[+-]?\d{1,200}")
    | st.binary()
    | st.none()
    | st.booleans()
    | st.tuples(st.integers(), st.integers(-(10**9), 10**9)).map(lambda each: Decimal(f"{each[0]}E{each[1]}"))
)
def test_any_value_becomes_a_priority_or_is_refused(value):
    try:
        priority = whole_priority(value)
    except OptionError:
        return
    assert type(priority) is int
    assert abs(priority) <= 2**62
    assert 0 <= clamp_priority(priority) <= 10


def test_priority_of_each_place_is_clamped_with_warning(app, new_app, caplog):
    plain = task(app)
    own = task(app, name="proj.own", priority=255)
    asks = task(app, name="proj.asks", affinity=Affinity("pdf", priority=255))
    calls = {
        "call": (lambda: plain.apply_async(priority=255), "proj.plain"),
        "text": (lambda: plain.apply_async(priority="256"), "proj.plain"),
        "affinity": (lambda: plain.apply_async(affinity=Affinity(priority=257)), "proj.plain"),
        "mapping": (lambda: plain.apply_async(affinity={"priority": 258}), "proj.plain"),
        "set": (lambda: plain.s().set(priority=259).delay(), "proj.plain"),
        "signature": (lambda: plain.signature(options={"priority": 260}).apply_async(), "proj.plain"),
        "group": (lambda: group(plain.s().set(priority=261)).apply_async(), "proj.plain"),
        "chain": (lambda: chain(plain.s().set(priority=262), plain.s()).apply_async(), "proj.plain"),
        "by name": (lambda: app.send_task("proj.far", priority=263), "proj.far"),
        "many": (lambda: publish_many(plain, [()], priority=264), "proj.plain"),
        "attribute": (lambda: own.delay(), "proj.own"),
        "affinity of the task": (lambda: asks.delay(), "proj.asks"),
    }
    wrong = []
    for place, (call, name) in calls.items():
        app.redis.flushall()
        caplog.clear()
        LIMIT.forget()
        call()
        words = warnings_in(caplog)
        found = lanes(app)
        if found != ["queued.10"] or len(words) != 1 or not words[0].startswith(f"Call of task {name}: priority 2"):
            wrong.append((place, found, words))
    assert wrong == []


def test_warning_is_given_once_for_each_place_and_number(app, caplog):
    plain = task(app)
    for priority in (255, 255, -1, 255, -1):
        plain.apply_async(priority=priority)
    assert sorted(lanes(app)) == ["queued.0"] * 2 + ["queued.10"] * 3
    assert warnings_in(caplog) == [
        "Call of task proj.plain: priority 255 is outside of 0 to 10, and counts as 10",
        "Call of task proj.plain: priority -1 is outside of 0 to 10, and counts as 0",
    ]


def test_priority_within_the_range_gives_no_warning(app, caplog):
    plain = task(app)
    for priority in (0, 10, "10", 5.0, True, None):
        plain.apply_async(priority=priority)
    assert warnings_in(caplog) == []


def test_default_priority_of_the_app_is_clamped(app, caplog):
    app.conf.task_default_priority = 255
    task(app).delay()
    assert lanes(app) == ["queued.10"]
    assert "counts as 10" in caplog.text


def test_clamped_priority_of_a_route_names_the_route(app, caplog):
    app.conf.task_routes = {"proj.*": {"priority": 255}}
    app.send_task("proj.plain")
    assert lanes(app) == ["queued.10"]
    assert warnings_in(caplog) == ["task_routes 'proj.*': priority 255 is outside of 0 to 10, and counts as 10"]


def test_lower_first_clamps_before_the_order_is_reversed(app, caplog):
    app.conf.affinity_priority_order = "lower-first"
    plain = task(app)
    plain.apply_async(priority=255)
    plain.apply_async(priority=-1)
    assert sorted(lanes(app)) == ["queued.0", "queued.10"]
    assert len(warnings_in(caplog)) == 2


@pytest.mark.parametrize("options", [{"priority": 255}, {"affinity": Affinity("pdf", priority=255)}])
def test_beat_sends_an_entry_whose_priority_is_too_high(app, caplog, options):
    app.conf.beat_schedule = {"nightly": {"task": "proj.plain", "schedule": 1.0, "options": options}}
    scheduler = Scheduler(app, schedule={})
    scheduler.setup_schedule()
    for _ in range(3):
        scheduler.apply_entry(scheduler.schedule["nightly"])
    assert lanes(app) == ["queued.10"] * 3
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
    assert warnings_in(caplog) == [
        "beat_schedule entry 'nightly': priority 255 is outside of 0 to 10, and counts as 10"
    ]


def test_entry_of_django_celery_beat_is_named(app, caplog):
    """The scheduler of django-celery-beat sets a header with the entry's name."""
    options = {"priority": 255, "headers": {"periodic_task_name": "Send all\ninvoices"}}
    entry = ScheduleEntry("x", "proj.plain", schedule=1.0, options=options, app=app)
    Scheduler(app, schedule={}).apply_entry(entry)
    assert lanes(app) == ["queued.10"]
    (warning,) = warnings_in(caplog)
    assert warning == "Periodic task 'Send all\\ninvoices': priority 255 is outside of 0 to 10, and counts as 10"


def test_affinity_keeps_the_number_for_the_warning():
    assert Affinity("pdf", priority=255).priority == 255
    assert Affinity("pdf", priority="255").priority == 255
    assert as_affinity({"priority": -1.0}).priority == -1


def test_generated_priorities_do_not_fill_memory(app, monkeypatch, caplog):
    monkeypatch.setattr(option_checks, "_MAX_WARNINGS", 3)
    plain = task(app)
    for priority in range(11, 20):
        plain.apply_async(priority=priority)
    assert len(warnings_in(caplog)) == len(option_checks._warned) == 3
