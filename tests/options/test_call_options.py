"""The rows of the options of calls: what each says is so."""

import dataclasses

import pytest

from celery_affinity import Affinity, OptionError
from celery_affinity.options import call_options
from celery_affinity.options.call_options import FIRST_ATTEMPT, OPTIONS, PLAIN
from celery_affinity.reports.jobs import Job as Shown
from celery_affinity.schema.job_record import FIELDS, NewJob

ROWS = [pytest.param(name, option, id=name) for name, option in OPTIONS.items()]


@pytest.mark.parametrize(("name", "option"), ROWS)
def test_a_row_names_fields_that_are_there(name, option):
    assert option.field in {*FIELDS, "type"}
    assert option.shown in {each.name for each in dataclasses.fields(Shown)}, "observe.jobs.Job has no such field"
    assert FIRST_ATTEMPT in option.places
    assert bool(option.in_json) == bool(option.accepted_in_json)


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_option_is_a_field_of_an_affinity_and_of_a_job(name):
    assert name in {each.name for each in dataclasses.fields(Affinity)}
    assert name in {each.name for each in dataclasses.fields(NewJob)}


def test_the_first_place_that_says_a_plain_option_counts():
    one, other = Affinity(on_demand=True), Affinity(on_demand=False)
    places = [({"on_demand": True}, other, {"on_demand": False}, other), ({}, one, {"on_demand": False}, other)]
    places += [({}, Affinity("pdf"), {"on_demand": True}, other), ({}, Affinity(), {}, one)]
    for said, asked, left, own in places:
        assert call_options.resolve_plain_options(said, asked, left, own) == {"on_demand": True}
    assert call_options.resolve_plain_options({}, Affinity("pdf"), {}, Affinity()) == {}


def test_a_call_that_says_what_is_not_accepted_is_refused_and_traces_that_do_say_nothing():
    with pytest.raises(OptionError, match="on_demand must be True or False, got: 1"):
        call_options.resolve_plain_options({"on_demand": 1}, Affinity(), {}, Affinity())
    for traces in (None, "text", {"on_demand": "yes"}, {"on_demand": None}, {"other": True}):
        assert call_options.options_in(traces) == {}
    assert call_options.options_in({"on_demand": False, "other": 1}) == {"on_demand": False}


def test_a_stamp_of_the_users_that_has_the_name_of_an_option_is_none():
    stamps = {"stamped_headers": ["on_demand", "affinity"], "on_demand": "x", "affinity": "a b"}
    assert call_options.inherited_options(stamps) == {}
    assert call_options.inherited_options({"affinity": Affinity(on_demand=True)}) == {"on_demand": True}
    assert call_options.inherited_options({"affinity": Affinity(on_demand=True), "on_demand": False}) == {
        "on_demand": False
    }
