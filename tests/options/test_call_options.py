"""The rows of the options of calls: what each says is so."""

import dataclasses

import pytest

from celery_affinity import Affinity, Merge, OptionError, Rate
from celery_affinity.options import call_options
from celery_affinity.options.call_options import FIRST_ATTEMPT, OPTIONS, PLAIN, Sources
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
    option, fields = OPTIONS[name], {each.name for each in dataclasses.fields(NewJob)}
    assert option.is_of_calls or name in {each.name for each in dataclasses.fields(Affinity)}
    assert {name, option.field, {"times": "due"}.get(option.field)} & fields


#: Sources of a plain option, highest precedence first.
PLAIN_PRECEDENCE = "options call_affinity first_attempt task_affinity"
#: Any other option -> its sources, highest precedence first.
PRECEDENCE = {
    "affinity": "call_affinity first_attempt task_affinity named task_options options",
    "priority": "call_affinity options first_attempt task_affinity task_options",
    "exclusive": "options call_affinity first_attempt task_affinity named",
    "rate": "options call_affinity first_attempt task_affinity named",
    "tenant": "options call_affinity first_attempt task_affinity parent named",
    "preemptible": "options call_affinity first_attempt task_affinity named",
    "locality": "options call_affinity first_attempt task_affinity named",
    "merge_key": "options first_attempt task_affinity named",
    "start_within": "options call_affinity first_attempt task_affinity named",
    "deadline": "options first_attempt",
}
#: Option -> two values that differ; other options accept a text.
VALUES = {"priority": (1, 2), "on_demand": (True, False), "preemptible": (True, False)}
VALUES |= {"start_within": (1, 2.5), "deadline": (1, 2.5)}
VALUES["rate"] = (Rate("1/s", "one"), Rate("1/s", "two"))


def contents(name, source, value):
    """Return what the field *source* of `Sources` contains if it sets the option to *value*."""
    if source in ("options", "task_options"):
        return {"queue" if name == "affinity" else name: value}
    if source == "first_attempt":
        return {name: value}
    if source == "parent":
        return value
    field = OPTIONS[name].of_affinity or name
    return Affinity(**{field: Merge(value, keep="last") if field == "merge" else value})


@pytest.mark.parametrize("name", OPTIONS)
def test_a_source_takes_precedence_over_all_that_follow(name):
    sources = PRECEDENCE.get(name, PLAIN_PRECEDENCE).split()
    first, other = VALUES.get(name, ("one", "two"))
    for number, source in enumerate(sources):
        later = {each: contents(name, each, other) for each in sources[number + 1 :]}
        alone = call_options.resolve_source(name, Sources(**{source: contents(name, source, first)}))
        assert alone[0] == source
        assert alone == call_options.resolve_source(name, Sources(**{source: contents(name, source, first), **later}))
    unset = {
        each: contents(name, each, first)
        for each in {*Sources._fields} - {*sources} - {"named"}
        if not ("affinity" in each and name == "deadline")  # an Affinity has no deadline
    }
    assert call_options.resolve_source(name, Sources(**unset)) == ("", None)


def test_plain_options_are_those_that_are_set():
    assert call_options.resolve_plain_options(Sources({"on_demand": False})) == {"on_demand": False}
    assert call_options.resolve_plain_options(Sources(call_affinity=Affinity("pdf"))) == {}


def test_a_call_that_says_what_is_not_accepted_is_refused_and_traces_that_do_say_nothing():
    with pytest.raises(OptionError, match="on_demand must be True or False, got: 1"):
        call_options.resolve_plain_options(Sources({"on_demand": 1}))
    for traces in (None, "text", {"on_demand": "yes"}, {"on_demand": None}, {"other": True}, {"deadline": "soon"}):
        assert call_options.options_in(traces) == {}
    assert call_options.options_in({"on_demand": False, "other": 1}) == {"on_demand": False}


def test_a_stamp_of_the_users_that_has_the_name_of_an_option_is_none():
    stamps = {"stamped_headers": ["on_demand", "affinity"], "on_demand": "x", "affinity": "a b"}
    assert call_options.inherited_options(stamps) == {}
    assert call_options.inherited_options({"affinity": Affinity(on_demand=True)}) == {"on_demand": True}
    assert call_options.inherited_options({"affinity": Affinity(on_demand=True), "on_demand": False}) == {
        "on_demand": False
    }
