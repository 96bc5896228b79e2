"""The documented precedence of options: each place overrides all later places, and a retry keeps its value."""

import pytest
from celery.exceptions import Retry
from kombu import pools
from kombu.utils.json import loads

from celery_affinity import Affinity, Merge
from celery_affinity.options.call_options import FIRST_ATTEMPT, OPTIONS, PARENT, PLAIN
from celery_affinity.publishing.message import PROPERTY
from celery_affinity.schema.job_record import FIELDS
from celery_affinity.schema.rules_codec import decode_rules
from celery_affinity.schema.values import decode_part
from docs.pages.options import PLACES

from ..support.apps import app_for
from ..support.messages import running

#: Subject of an option, such as "merge key" -> the first option for it.
NAMES = {option.decides: name for name, option in reversed(OPTIONS.items())}

#: Plain option with a separate field in the job hash -> this field.
FIELDS_OF = {option.decides: kept for option in PLAIN.values() if (kept := FIELDS[option.field].kept)}
ROWS = [
    pytest.param(option, [place for place in places[:-1] if place != PARENT], id=option)
    for option, places in PLACES.items()
]


def is_number(option):
    return OPTIONS[NAMES[option]].accepted.startswith(("a whole number", "a number"))


def is_yes_or_no(option):
    return OPTIONS[NAMES[option]].accepted.startswith("True or False")


def read(option, text):
    """Return the value of an option from the text in its field."""
    if is_yes_or_no(option):
        return text == "1"
    return int(text) if text and is_number(option) else decode_part(text)


def in_affinity(option, value):
    """Return the option as an argument of `Affinity`, or as a value of `affinity_task_rules`."""
    name = {"affinity": "type", "merge_key": "merge"}.get(NAMES[option], NAMES[option])
    return {name: Merge(value, keep="last") if name == "merge" else value}


def render():
    pass


@pytest.fixture
def publish(valkey, redis_client):
    """Return a function that publishes a call, or a retry of *first_attempt*, with an option set in several places."""

    def options_of(option, values, who):
        said = {by: value for (whose, by), value in values.items() if whose == who}
        return {by: Affinity(**in_affinity(option, value)) if by == "affinity" else value for by, value in said.items()}

    def publish(option, values, first_attempt=None):
        pools.reset()
        app = app_for(valkey.url, task_ignore_result=True)
        app.conf.task_routes = {"shop.render": options_of(option, values, "route")}
        for setting, value in options_of(option, values, "name").items():
            app.conf[setting] = {"shop.*": in_affinity(option, value) if setting == "affinity_task_rules" else value}
        if option == "preemption":  # preemption needs a tenant
            named = (app.conf.get("affinity_task_rules") or {}).get("shop.*", {})
            app.conf.update(task_acks_late=True, affinity_task_rules={"shop.*": {"tenant": "acme", **named}})
        own = options_of(option, values, "task")
        if option == "merge key" and not own and not app.conf.get("affinity_task_rules"):
            own = {
                "affinity": Affinity(**in_affinity(option, "other"))
            }  # a call can set a merge key only if the task merges
        task = app.task(name="shop.render", shared=False, **own)(render)
        call = options_of(option, values, "call")
        if first_attempt is None:
            task.apply_async(**call)
        else:
            with running(task, first_attempt), pytest.raises(Retry):
                task.retry(countdown=0, **call)
        (job,) = redis_client.scan_iter("*job:*")
        row = {name.decode(): value.decode() for name, value in redis_client.hgetall(job).items()}
        message = loads(redis_client.get(job.replace(b"job:", b"message:")).decode())
        redis_client.flushdb()
        app.close()
        mode, priority = row["lane"].split(".")
        text = row.get("rules", "")
        rules = text.partition("=")[2].partition(" ")[0].removeprefix("tenant%3A")
        found = {"type": row["type"], "priority": int(priority), "mode": mode == "demand", "key": rules}
        found["preemption"] = decode_rules(text).is_preemptible
        found |= {each: read(each, row.get(field, "")) for each, field in FIELDS_OF.items()}
        inherited = message["properties"].get(PROPERTY, {})
        found |= {each: inherited.get(NAMES[each]) for each in ("start within", "deadline")}
        return found.get(option, rules), message

    return publish


def valued(option, places):
    """Return a value for each place. Yes-or-no options have one value in the first place and the other in the rest."""
    if is_number(option):
        return {place: number for number, place in enumerate(places, 1)}
    if option == "deadline":
        return {place: f"{2030 + number}-01-01T12:00:00+00:00" for number, place in enumerate(places)}
    return {place: number == 0 if is_yes_or_no(option) else f"v{number}" for number, place in enumerate(places)}


@pytest.mark.filterwarnings("ignore:[\\s\\S]*task attribute is deprecated")
@pytest.mark.parametrize(("option", "places"), ROWS)
def test_each_place_overrides_all_later_places(publish, option, places):
    places = [place for place in places if place != FIRST_ATTEMPT]
    for number in range(len(places)):
        values = valued(option, places[number:])
        assert publish(option, values)[0] == values[places[number]], places[number]


@pytest.mark.filterwarnings("ignore:[\\s\\S]*task attribute is deprecated")
@pytest.mark.parametrize(("option", "places"), ROWS)
def test_first_attempt_overrides_only_later_places(publish, option, places):
    if option == "key":
        places = [place for place in places if place != ("call", "affinity")]
    for number in range(places.index(FIRST_ATTEMPT) + 1):
        values = valued(option, places[number:])
        value = values.pop(FIRST_ATTEMPT)
        _, first_attempt = publish(option, {places[0]: value})
        expected = value if places[number] == FIRST_ATTEMPT else values[places[number]]
        assert publish(option, values, first_attempt)[0] == expected, places[number]


def test_affinity_of_a_retry_can_change_the_key(publish):
    _, first_attempt = publish("key", {("call", "exclusive"): "first"})
    assert publish("key", {("call", "affinity"): "second"}, first_attempt)[0] == "second"


def test_unset_options_have_the_documented_default(publish):
    found = {option: publish(option, {})[0] for option in ("type", "priority", "mode", "key", "preemption")}
    assert found == {"type": "celery", "priority": 0, "mode": False, "key": "", "preemption": False}


def test_child_calls_inherit_the_tenant_unless_they_set_one(valkey, redis_client):
    app = app_for(valkey.url, task_ignore_result=True, affinity_task_rules={"shop.*": {"tenant": "by-name"}})
    parent = app.task(name="shop.parent", shared=False)(render)
    plain = app.task(name="shop.plain", shared=False)(render)
    own = app.task(name="shop.own", shared=False, affinity=Affinity(tenant="own"))(render)

    def tenant_of(publish):
        publish()
        (job,) = redis_client.scan_iter("*job:*")
        rules = redis_client.hget(job, "rules")
        message = loads(redis_client.get(job.replace(b"job:", b"message:")).decode())
        redis_client.flushdb()
        return rules and rules.decode().partition("tenant%3A")[2].partition(" ")[0], message

    name, message = tenant_of(lambda: parent.apply_async(tenant="acme"))
    assert name == "acme"
    assert tenant_of(plain.delay)[0] == "by-name"
    with running(parent, message):
        assert tenant_of(plain.delay)[0] == "acme"
        assert tenant_of(own.delay)[0] == "own"
        assert tenant_of(lambda: plain.apply_async(tenant="other"))[0] == "other"
        assert tenant_of(lambda: plain.apply_async(tenant=False))[0] is None
    app.close()


def test_app_setting_disables_tenant_inheritance(valkey, redis_client):
    app = app_for(valkey.url, task_ignore_result=True, affinity_inherit_tenant=False)
    parent = app.task(name="shop.parent", shared=False)(render)
    plain = app.task(name="shop.plain", shared=False)(render)
    parent.apply_async(tenant="acme")
    (message,) = redis_client.scan_iter("*message:*")
    message = loads(redis_client.get(message).decode())
    redis_client.flushdb()
    with running(parent, message):
        plain.delay()
    (job,) = redis_client.scan_iter("*job:*")
    assert redis_client.hget(job, "rules") is None
    app.close()


def test_route_priority_applies_only_to_tasks_without_one(publish):
    route, task = ("route", "priority"), ("task", "affinity")
    assert publish("priority", {route: 3, task: 5})[0] == 3
    assert publish("priority", {route: 3, task: 5, ("task", "priority"): 7})[0] == 5
