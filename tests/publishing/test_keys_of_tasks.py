"""Keys that no call can fill, or in the wrong place, are refused where the task is defined."""

import re
from dataclasses import replace

import pytest
from celery import shared_task

from celery_affinity import Affinity, Exclusive, Merge, OptionError, Rate, SettingError
from celery_affinity.publishing import validation
from celery_affinity.publishing.app_config import settings_of
from celery_affinity.publishing.validation import check_app

from ..support.misspellings import nothing, refused, task

TOWN = Affinity(exclusive="{town}")
NO_TOWN = "exclusive \"{town}\": task shop.reroute has no argument 'town'; it takes: "


@pytest.fixture
def app(new_app):
    return new_app()


def reroute(area, force=False):
    pass


def test_unfillable_template_is_refused_at_the_decorator(app):
    with refused(NO_TOWN + "area, force"):
        app.task(name="shop.reroute", affinity=TOWN)(reroute)
    with refused('rate "{args[2]}": task shop.reroute has no positional argument 2; it takes: area, force'):
        app.task(name="shop.reroute", affinity={"rate": {"rate": "1/s", "key": "{args[2]}"}})(reroute)
    with refused("exclusive \"{area}\": task shop.reroute has no argument 'area'; it takes: force"):
        app.task(name="shop.reroute", bind=True, affinity=Affinity(exclusive="{area}"))(reroute)
    app.task(name="shop.reroute", affinity=Affinity(exclusive="{area}{force}{args[1]}{task}"))(reroute)
    app.task(name="shop.other", bind=True, affinity=Affinity(exclusive=Exclusive(lambda args, kwargs: None)))(reroute)


def test_template_of_a_base_or_class_is_checked(app):
    class Base(app.Task):
        affinity = TOWN

    with refused(NO_TOWN + "area, force"):
        app.task(name="shop.reroute", base=Base)(reroute)

    class Reroute(Base):
        name = "shop.reroute"

        def run(self, area):
            pass

    for each in (Reroute, Reroute()):
        with refused(NO_TOWN + "area"):
            app.register_task(each)

    class Static(Base):
        name = "shop.reroute"

        @staticmethod
        def run(area, town):
            pass

    app.register_task(Static)


def test_app_that_selects_the_transport_later_is_checked_then(new_app):
    app = new_app(transport="redis")
    made = app.task(name="shop.reroute", affinity=TOWN)(reroute)
    app.conf.broker_transport = "celery_affinity:Transport"
    with refused(NO_TOWN + "area, force"):
        made.delay("north")


def test_shared_task_is_checked(app, monkeypatch):
    monkeypatch.setattr(validation, "_shared_complaints", [])
    with refused(NO_TOWN + "area, force"):
        shared_task(name="shop.reroute", affinity=TOWN)(reroute)


def test_annotation_is_checked_before_use(new_app):
    app = new_app(task_annotations={"shop.reroute": {"affinity": TOWN}})
    made = app.task(name="shop.reroute", shared=False)(reroute)
    app.finalize()
    with refused(NO_TOWN + "area, force"):
        made.delay("north")
    with refused("task shop.reroute: " + NO_TOWN + "area, force"):
        check_app(app)


@pytest.mark.parametrize("options", [{"exclusive": "k"}, {"exclusive": Exclusive("k")}, {"rate": Rate("1/s", "k")}])
def test_key_next_to_a_tasks_affinity_is_refused(app, options):
    (name,) = options
    with refused(f"task shop.render: {name}= is an option of calls; a task has it in its affinity: Affinity({name}="):
        task(app, **options)


@pytest.mark.parametrize("options", [{"rate": 5}, {"rate": "10 kHz"}, {"exclusive": True}, {"date": 5}])
def test_users_own_attributes_are_ignored(app, options):
    task(app, **options)
    check_app(app)


def test_template_in_place_of_a_key_stops_worker_starts(new_app):
    app = new_app(task_routes={"shop.*": {"exclusive": "city:{city}"}})
    words = "task_routes 'shop.*': exclusive= has the key itself, got: 'city:{city}'; for a template write Exclusive('c"
    with refused(words):
        check_app(app)
    check_app(new_app(task_routes={"shop.*": {"exclusive": Exclusive("city:{city}")}}))
    check_app(new_app(task_routes={"shop.*": {"exclusive": "city:{"}}))
    with refused("task_routes 'shop.*': rate must be a Rate, such as Rate('100/m', 'crawl:{host}'), or False, got: 5"):
        check_app(new_app(task_routes={"shop.*": {"rate": 5}}))


# -- affinity_task_rules


@pytest.mark.parametrize("rules", [5, {"": {}}])
def test_rules_of_names_must_be_a_mapping_of_patterns(new_app, rules):
    words = "affinity_task_rules must be a mapping of task name patterns to rules, such as {'proj.route.*': {'exclusi"
    with pytest.raises(SettingError, match="^" + re.escape(words)):
        settings_of(new_app(affinity_task_rules=rules))


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (5, "a rule of a name must be {'exclusive': ...}, {'rate': ...}, {'tenant': ...}, "),
        (Affinity("pdf", exclusive="k"), "a rule of a name must be {'exclusive': ...}, {'rate': ...}"),
        ({"exlusive": 5}, "a rule of a name must be {'exclusive': ...}, {'rate': ...}, {'tenant': ...}"),
        ({"merge": "k"}, "merge must be a Merge, such as Merge("),
        ({"merge": {"keep": "last"}}, "merge must be a Merge, such as Merge("),
        ({"merge": {"key": "k"}}, "Merge takes one of keep="),
        ({"merge": {"key": "k", "kep": "last"}}, "Merge takes key, keep, fold, "),
        (
            {"merge": Merge("k", fold=max)},
            "fold of merge must be the dotted name of a function, such as 'proj.plans.union'",
        ),
        (
            {"merge": {"key": "k", "keep": "all", "split": list}},
            "split of merge must be the dotted name of a function, such as",
        ),
        ({"exclusive": ""}, "key of exclusive must be a text that is not empty"),
        ({"rate": "1/s"}, "rate must be a Rate, such as Rate('100/m', 'crawl:{host}')"),
    ],
)
def test_invalid_rule_of_a_name_is_refused(new_app, rule, words):
    with pytest.raises(SettingError, match="^" + re.escape(f"affinity_task_rules['a']: {words}")):
        settings_of(new_app(affinity_task_rules={"a": rule}))


def test_rules_of_names_accept_text_and_mappings(new_app):
    rate = {"rate": "1/s", "key": "{x}"}
    rules = {"a": {"exclusive": {"key": "k", "limit": 2}}, "b": {"rate": rate}, "c": {}, "d": None}
    rules["e"] = {"exclusive": "k", "rate": rate}
    found = settings_of(new_app(affinity_task_rules=rules)).task_rules
    assert {name: each.keys for name, each in found.items()} == {
        "a": (Exclusive("k", 2),),
        "b": (Rate("1/s", "{x}"),),
        "c": (),
        "d": (),
        "e": (Rate("1/s", "{x}"), Exclusive("k")),
    }


def test_name_may_set_merging_with_or_without_a_key(new_app):
    plans, last = {"key": "{city}", "fold": "proj.plans.union", "most": 5}, Merge("{city}", keep="last")
    rules = {"a": {"merge": plans}, "b": {"merge": last, "rate": Rate("1/s", "k")}, "c": last, "d": Exclusive("k")}
    settings = settings_of(new_app(affinity_task_rules=rules))
    assert settings.task_rules == {
        "a": Affinity(merge=Merge("{city}", fold="proj.plans.union", most=5)),
        "b": Affinity(merge=last, rate=Rate("1/s", "k")),
        "c": Affinity(merge=last),
        "d": Affinity(exclusive="k"),
    }
    assert replace(settings) == settings


def test_unfillable_rule_of_a_name_stops_worker_starts(new_app):
    app = new_app(affinity_task_rules={"shop.*": {"exclusive": "{town}"}})
    app.task(name="shop.own", shared=False, affinity=Affinity(exclusive="own"))(nothing)
    app.finalize()
    check_app(app)
    app.task(name="shop.reroute", shared=False)(reroute)
    with refused("affinity_task_rules: " + NO_TOWN + "area, force"):
        check_app(app)
    assert issubclass(OptionError, ValueError)


@pytest.mark.parametrize(
    ("merge", "words"),
    [
        ({"key": "{town}", "keep": "last"}, "merge \"{town}\": task shop.reroute has no argument 'town'"),
        (
            {"key": "{area}", "fold": "no.such.module"},
            "fold of merge must be the dotted name of a function, got: 'no.such.module' (ModuleNotFoundError",
        ),
        (
            {"key": "{area}", "keep": "all", "split": "os:sep"},
            "split of merge must be the dotted name of a function, got: 'os:sep'",
        ),
    ],
)
def test_impossible_merging_of_a_name_stops_worker_starts(new_app, merge, words):
    app = new_app(affinity_task_rules={"shop.*": {"merge": merge}})
    app.task(name="shop.own", shared=False, affinity=Affinity(merge=Merge("k", keep="last")))(nothing)
    app.finalize()
    check_app(app)
    app.task(name="shop.reroute", shared=False)(reroute)
    with refused(f"affinity_task_rules: {words}"):
        check_app(app)


def test_task_may_name_its_functions(new_app):
    app = new_app()
    app.finalize()
    app.task(name="shop.own", shared=False, affinity=Affinity(merge=Merge("k", fold="operator.add")))(nothing)
    check_app(app)
    app.task(name="shop.wrong", shared=False, affinity=Affinity(merge=Merge("k", fold="operator.ad")))(nothing)
    with refused("task shop.wrong: fold of merge must be the dotted name of a function, got: 'operator.ad' (Attribute"):
        check_app(app)
