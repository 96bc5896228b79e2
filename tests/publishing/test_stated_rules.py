"""The key of a call's job: the places that can set it, their precedence, and the calls that do not inherit it."""

# Longer than 300 lines: one table of places that set a key, and a case for each way to publish.

import json
import re

import pytest
from celery import Celery, beat, chain, chord, group
from celery.exceptions import Retry
from celery.signals import before_task_publish
from kombu import Producer

from celery_affinity import Affinity, Exclusive, OptionError, Rate, publish_many
from celery_affinity.publishing import option_resolution
from celery_affinity.publishing.message import PROPERTY

from ..support.messages import running

ONE = "key=city%3AHH limit=1"
BOTH = f"key=rate%3AHH rate=1/1000000 {ONE}"


@pytest.fixture
def new_task(app):
    """Return a function that makes a task ``reroute(city, force=False)`` with options."""

    def make(*affinity, name="proj.reroute", **options):
        def reroute(city=None, force=False):
            pass

        if affinity:
            options["affinity"] = affinity[0]
        return app.task(name=name, shared=False, **options)(reroute)

    return make


@pytest.fixture
def exclusive(new_task):
    return new_task(Affinity(exclusive="city:{city}"))


def jobs(app):
    """Return (task name, rules) of every job published since the last call. Ids with rules have a suffix."""
    found, marks = [], (b"", b"!", b"&")
    for key in app.redis.scan_iter("*job:*"):
        row = app.redis.hgetall(key)
        rules = row.get(b"rules", b"").decode()
        assert key.endswith(marks[rules.count("key=")])
        message = json.loads(app.redis.get(key.replace(b"job:", b"message:")))
        assert message["properties"].get(PROPERTY, {}).get("rules", "") == rules
        assert not {"exclusive", "rate"} & message["properties"].keys()
        found.append((row[b"name"].decode(), rules, message))
    app.redis.flushdb()
    return found


def rules(app):
    """Return the rules of the only job published since the last call."""
    ((_, found, _),) = jobs(app)
    return found


def refused(words):
    return pytest.raises(OptionError, match="^" + re.escape(words))


# -- the task


def test_task_without_a_key_has_no_rules(app, new_task):
    new_task().delay("HH")
    assert rules(app) == ""
    new_task("pdf", name="other").delay("HH")
    assert rules(app) == ""


@pytest.mark.parametrize(
    ("affinity", "text"),
    [
        (Affinity(exclusive="city:{city}"), ONE),
        (Affinity(exclusive=Exclusive("city:{city}", keep_order=True)), ONE + " order=1"),
        (
            Affinity("route", exclusive=Exclusive("{task}:{args[0]}:{force}", 4)),
            "key=proj.reroute%3AHH%3AFalse limit=4",
        ),
        (Affinity(rate=Rate("100/m", "city:{city}")), "key=rate%3Acity%3AHH rate=100/60000000"),
        (Affinity(rate=Rate("1/s", "{city}"), exclusive="city:{city}"), BOTH),
        (Affinity(exclusive=Exclusive(lambda args, kwargs: f"{args}{kwargs}")), "key=%28%27HH%27%2C%29%7B%7D limit=1"),
        (Affinity(exclusive=Exclusive(lambda args, kwargs: None)), ""),
        ({"exclusive": {"key": "city:{city}", "limit": 2}}, "key=city%3AHH limit=2"),
    ],
)
def test_task_sets_its_key(app, new_task, affinity, text):
    new_task(affinity).delay("HH")
    assert rules(app) == text


def test_key_is_filled_by_name_position_and_default(app, new_task):
    task = new_task(Affinity(exclusive="{city}:{force}"))
    for args, kwargs in ((("HH", True), {}), (("HH",), {"force": True}), ((), {"city": "HH", "force": True})):
        task.apply_async(args, kwargs)
        assert rules(app) == "key=HH%3ATrue limit=1"
    task.delay()
    assert rules(app) == "", "city is None"


def test_self_of_a_bound_task_is_not_an_argument(app):
    @app.task(bind=True, autoretry_for=(ValueError,), affinity=Affinity(exclusive="{city}"), shared=False)
    def bound(self, city):
        pass

    bound.delay("HH")
    assert rules(app) == "key=HH limit=1"


def test_class_of_tasks_sets_its_key(app):
    class Reroute(app.Task):
        name = "by.class"
        affinity = Affinity(exclusive="{city}")

        def run(self, city):
            pass

    app.register_task(Reroute()).delay("HH")
    assert rules(app) == "key=HH limit=1"


@pytest.mark.parametrize(
    ("protocol", "serializer"), [(1, "json"), (2, "json"), (2, "pickle"), (2, "yaml"), (2, "msgpack")]
)
def test_key_is_made_before_arguments_are_serialized(app, exclusive, protocol, serializer):
    app.conf.task_protocol = protocol
    exclusive.apply_async(("HH",), serializer=serializer)
    assert rules(app) == ONE


def test_call_that_makes_no_key_is_refused(app, new_task):
    words = "exclusive \"{city}\": task proj.reroute was called without argument 'city'; it takes: city"

    @app.task(name="proj.reroute", shared=False, typing=False, affinity=Affinity(exclusive="{city}"))
    def task(city):
        pass

    with refused(words):
        task.delay()
    with refused("key of exclusive must be a text that is not empty, got: ''"):
        task.delay("")
    with refused("key of exclusive must be one that does not begin with 'rate:', 'tenant:' or 'type:', got: 'rate:x'"):
        task.delay("rate:x")
    other = new_task(Affinity(exclusive=Exclusive(lambda args, kwargs: 5)), name="other")
    with refused("key of exclusive, as its function returns it, must be a text or None, got: 5"):
        other.delay()
    assert jobs(app) == []


# -- the call


def test_string_of_a_call_is_the_key_itself(app, exclusive):
    for key, encoded in (("city:B", "city%3AB"), ("{city}", "%7Bcity%7D"), ("{", "%7B")):
        exclusive.apply_async(("HH",), exclusive=key)
        assert rules(app) == f"key={encoded} limit=1"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"exclusive": Exclusive("x:{city}", 3)}, "key=x%3AHH limit=3"),
        ({"exclusive": {"key": "x", "limit": 3}}, "key=x limit=3"),
        ({"exclusive": False}, ""),
        ({"exclusive": None}, ONE),
        ({"rate": Rate("1/s", "{city}")}, BOTH),
        ({"rate": Rate("1/s", "{city}"), "exclusive": False}, "key=rate%3AHH rate=1/1000000"),
        ({"rate": Rate("1/s", "{city}"), "exclusive": "k"}, "key=k limit=1 key=rate%3AHH rate=1/1000000"),
        ({"affinity": Affinity("excel", rate=Rate("1/s", "{city}"))}, BOTH),
        ({"rate": False}, ONE),
        ({"affinity": "excel"}, ONE),
        ({"affinity": Affinity("excel", exclusive="y:{city}")}, "key=y%3AHH limit=1"),
        ({"affinity": Affinity("excel", exclusive="y"), "exclusive": "z"}, "key=z limit=1"),
        ({"affinity": Affinity("excel", exclusive="y"), "exclusive": False}, ""),
        ({"affinity": Affinity("excel", exclusive="y", on_demand=True), "queue": None}, "key=y limit=1"),
    ],
)
def test_key_of_a_call_wins_over_its_tasks(app, exclusive, options, text):
    exclusive.apply_async(("HH",), **options)
    assert rules(app) == text
    exclusive.s("HH").set(**options).delay()
    assert rules(app) == text


def test_signatures_retries_and_eager_calls_are_checked_like_calls(app, exclusive):
    words = "exclusive must be a key (str), an Exclusive, or False, got: 5"
    with refused(f"signature of task proj.reroute: {words}"):
        exclusive.s("HH").set(exclusive=5)
    with refused(f"call of task proj.reroute: {words}"):
        exclusive.apply(("HH",), exclusive=5)
    with refused(f"retry of task proj.reroute: {words}"):
        exclusive.retry(exclusive=5)
    assert exclusive.apply(("HH",), exclusive="k", rate=False).get() is None


@pytest.mark.parametrize(
    ("rate", "exclusive", "first"),
    [
        ("{city}", "{city}:{force}", "exclusive"),
        ("{city}:{force}", "{city}", "rate"),
        ("{city}", "{force}", "rate"),
        ("{city}", "{city}", "rate"),
        ("all", "{city}", "exclusive"),
        ("{city}", "{task}", "rate"),
        ("{city}", lambda args, kwargs: "k", "exclusive"),
        (lambda args, kwargs: "k", "{city}:{force}", "rate"),
    ],
)
def test_job_and_retry_pass_the_narrower_key_first(app, new_task, rate, exclusive, first):
    task = new_task(Affinity(rate=Rate("1/s", rate), exclusive=Exclusive(exclusive)))
    task.delay("HH", force=True)
    ((_, found, message),) = jobs(app)
    assert found.startswith("key=rate%3A") == (first == "rate")
    with running(task, message), pytest.raises(Retry):
        task.retry(countdown=0)
    assert rules(app) == found


def test_key_kept_for_retries_precedes_any_rate(app, new_task):
    """Otherwise another job waiting for the key could take the retry's place at the rate, and neither would start."""
    ordered = Exclusive("all", keep_order=True)
    task = new_task(Affinity(rate=Rate("1/s", "{city}"), exclusive=ordered))
    task.delay("HH")
    ((_, found, message),) = jobs(app)
    assert found == "key=all limit=1 order=1 key=rate%3AHH rate=1/1000000"
    with running(task, message), pytest.raises(Retry):
        task.retry(countdown=0)
    assert rules(app) == found


def test_beat_entry_sets_a_key(app, exclusive):
    options = {"exclusive": Exclusive("heartbeat:{city}", 2)}
    app.conf.beat_schedule = {"nightly": {"task": "proj.reroute", "schedule": 60, "args": ("HH",), "options": options}}
    scheduler = beat.Scheduler(app=app)
    scheduler.apply_async(scheduler.schedule["nightly"], advance=False)
    assert rules(app) == "key=heartbeat%3AHH limit=2"


def test_handler_of_celerys_signal_may_set_a_key(app, exclusive):
    def handler(properties=None, **_):
        properties["exclusive"] = "signal"

    before_task_publish.connect(handler)
    try:
        exclusive.delay("HH")
    finally:
        before_task_publish.disconnect(handler)
    assert rules(app) == "key=signal limit=1"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exclusive": "", "queue": "a"}, "key of exclusive must be a text that is not empty, got: ''"),
        ({"exclusive": 5}, "exclusive must be a key (str), an Exclusive, or False, got: 5"),
        (
            {"exclusive": "type:pdf"},
            "key of exclusive must be one that does not begin with 'rate:', 'tenant:' or 'type:', got: ",
        ),
        ({"rate": "1/s"}, "rate must be a Rate, such as Rate('100/m', 'crawl:{host}'), or False, got: '1/s'"),
        (
            {"exclusive": Exclusive("{town}")},
            "exclusive \"{town}\": task proj.reroute has no argument 'town'; it takes: city, force",
        ),
    ],
)
def test_invalid_key_of_a_call_is_refused_there(app, exclusive, options, words):
    with refused(words):
        exclusive.apply_async(("HH",), **options)
    assert jobs(app) == []


def test_routes_and_unknown_names_set_a_key(app, new_task):
    new_task()
    app.conf.task_routes = {
        "proj.*": {"exclusive": "all"},
        "far.*": {"queue": "far", "exclusive": Exclusive("{city}")},
        "rated": {"affinity": Affinity("pdf", rate=Rate("1/s", "{city}"))},
    }
    app.send_task("proj.reroute", ("HH",))
    assert rules(app) == "key=all limit=1"
    app.send_task("far.away", kwargs={"city": "B"})
    assert rules(app) == "key=B limit=1"
    app.send_task("rated", kwargs={"city": "B"})
    assert rules(app) == "key=rate%3AB rate=1/1000000"
    with refused("exclusive \"{city}\": task far.away was called without keyword argument 'city'; it got none"):
        app.send_task("far.away", ("B",))


# -- names


@pytest.fixture
def named(app):
    app.conf.affinity_task_rules = {
        "proj.route.free": {},
        "proj.route.*": {"exclusive": "city:{city}"},
        "proj.*": {"rate": Rate("1/s", "{task}:{args[0]}")},
    }
    return app


def test_producer_without_the_code_sets_keys_by_pattern(named):
    named.send_task("proj.route.one", kwargs={"city": "HH"})
    assert rules(named) == ONE
    named.send_task("proj.crawl", ("h",))
    assert rules(named) == "key=rate%3Aproj.crawl%3Ah rate=1/1000000"
    for name, options in (("proj.route.free", {}), ("proj.route.one", {"exclusive": False}), ("other", {})):
        named.send_task(name, **options)
        assert rules(named) == ""
    with refused("exclusive \"city:{city}\": task proj.route.one was called without keyword argument 'city'; it got "):
        named.send_task("proj.route.one", ("HH",))


def test_known_task_wins_over_rules_of_its_name(named, new_task):
    new_task(name="proj.route.one").delay("HH")
    assert rules(named) == ONE
    new_task(Affinity(exclusive="own"), name="proj.route.two").delay("HH")
    assert rules(named) == "key=own limit=1"


# -- retries, and calls that do not inherit


def first(app):
    ((_, _, message),) = jobs(app)
    return message


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, ONE),
        ({"exclusive": "call"}, "key=call limit=1"),
        ({"rate": Rate("1/s", "{city}")}, BOTH),
        ({"rate": Rate("1/s", "{city}"), "exclusive": False}, "key=rate%3AHH rate=1/1000000"),
        ({"exclusive": False}, ""),
    ],
)
def test_retry_keeps_its_key(app, exclusive, options, kept):
    exclusive.apply_async(("HH",), **options)
    message = first(app)
    for _ in range(2):
        with running(exclusive, message), pytest.raises(Retry):
            exclusive.retry(args=("another",), countdown=0)
        ((_, found, message),) = jobs(app)
        assert found == kept


def test_retry_may_set_another_key(app, exclusive):
    for options, found in (
        ({"exclusive": "other"}, "key=other limit=1"),
        ({"exclusive": False}, ""),
        ({"rate": False}, ONE),
        ({"rate": Rate("1/s", "HH")}, f"{ONE} key=rate%3AHH rate=1/1000000"),
    ):
        exclusive.delay("HH")
        with running(exclusive, first(app)), pytest.raises(Retry):
            exclusive.retry(countdown=0, **options)
        assert rules(app) == found


@pytest.mark.parametrize("route", [{"exclusive": "route"}, {"affinity": Affinity("pdf", exclusive="route")}])
def test_retry_keeps_its_calls_key_despite_routes(app, exclusive, route):
    app.conf.task_routes = {"proj.*": route}
    exclusive.delay("HH")
    with running(exclusive, first(app)), pytest.raises(Retry):
        exclusive.retry(countdown=0)
    assert rules(app) == "key=route limit=1"
    exclusive.apply_async(("HH",), exclusive="call")
    with running(exclusive, first(app)), pytest.raises(Retry):
        exclusive.retry(countdown=0)
    assert rules(app) == "key=call limit=1"


@pytest.mark.parametrize("kept", [5, "key=x", "key=x limit=0", ["key=x limit=1"], None])
def test_invalid_key_in_our_property_is_ignored(app, exclusive, kept):
    exclusive.delay("HH")
    message = first(app)
    message["properties"][PROPERTY]["rules"] = kept
    with running(exclusive, message), pytest.raises(Retry):
        exclusive.retry(args=("HH",), countdown=0)
    assert rules(app) == ONE


def test_calls_of_a_task_do_not_inherit_its_key(app, exclusive, new_task):
    plain = new_task(name="plain")
    exclusive.delay("HH")
    with running(exclusive, first(app)):
        plain.delay("HH")
        assert rules(app) == ""
        exclusive.delay("B")
        assert rules(app) == "key=city%3AB limit=1"


def embedded(message):
    return json.loads(message["body"])[2]


def test_callbacks_and_steps_inherit_no_key(app, exclusive, new_task):
    plain = new_task(name="plain")
    exclusive.apply_async(("HH",), exclusive="call", link=plain.si(), link_error=plain.si())
    links = embedded(first(app))
    assert not any("exclusive" in each["options"] for each in (*links["callbacks"], *links["errbacks"]))
    chain(exclusive.s("HH"), plain.s()).apply_async(exclusive="call")
    ((name, found, message),) = jobs(app)
    assert (name, found) == ("proj.reroute", "key=call limit=1")
    (step,) = embedded(message)["chain"]
    app.signature(step).apply_async()
    assert rules(app) == ""


def test_steps_and_members_keep_their_keys_in_a_message(app, exclusive, new_task):
    plain = new_task(name="plain")
    whole = chain(plain.s("x"), exclusive.s().set(exclusive=Exclusive("s:{city}", 2), on_demand=True))
    whole.apply_async()
    (step,) = embedded(first(app))["chain"]
    app.signature(step).apply_async(("result",))
    assert rules(app) == "key=s%3Aresult limit=2"
    group(exclusive.s("HH"), plain.s().set(exclusive="m")).apply_async()
    assert sorted((name, found) for name, found, _ in jobs(app)) == [("plain", "key=m limit=1"), ("proj.reroute", ONE)]


def test_body_of_a_chord_has_its_own_key(app, exclusive, new_task):
    plain = new_task(name="plain")
    body = exclusive.si("HH").set(affinity=Affinity(exclusive="b"))
    chord([plain.s("a").set(exclusive="h"), plain.s("b").set(exclusive="h")], body).apply_async()
    found = jobs(app)
    assert {(name, text) for name, text, _ in found} == {("plain", "key=h limit=1")}
    app.signature(embedded(found[0][2])["chord"]).apply_async()
    assert rules(app) == "key=b limit=1"


@pytest.mark.parametrize(
    ("own", "of_call", "header"),
    [
        ({}, {"exclusive": "k"}, "key=k limit=1"),
        ({"exclusive": "k"}, {}, "key=k limit=1"),
        ({"exclusive": "own"}, {"exclusive": "k"}, "key=k limit=1"),
        ({}, {"rate": Rate("1/s", "k")}, f"{ONE} key=rate%3Ak rate=1/1000000"),
        ({"rate": Rate("1/s", "k")}, {"exclusive": "k"}, "key=k limit=1 key=rate%3Ak rate=1/1000000"),
        ({}, {"affinity": Affinity("pdf", exclusive="k:{city}")}, "key=k%3AHH limit=1"),
        ({}, {"affinity": Affinity("pdf", exclusive="a"), "exclusive": "k", "on_demand": True}, "key=k limit=1"),
        ({}, {"exclusive": False}, ""),
        ({}, {"affinity": "pdf"}, ONE),
    ],
)
@pytest.mark.parametrize("of_body", [{}, {"exclusive": "b"}])
def test_key_of_a_chord_applies_only_to_its_header(app, exclusive, new_task, own, of_call, header, of_body):
    whole = chord([exclusive.s("HH"), exclusive.s("HH")], new_task(name="plain").si().set(**of_body)).set(**own)
    whole.apply_async(**of_call)
    found = jobs(app)
    assert [text for _, text, _ in found] == [header, header]
    app.signature(embedded(found[0][2])["chord"]).apply_async()
    ((_, text, message),) = jobs(app)
    assert text == ("key=b limit=1" if of_body else "")
    assert bool(message["properties"].get(PROPERTY, {}).get("on_demand")) == ("on_demand" in of_call)
    assert whole.options == own, "the caller's signature is unchanged"


def test_mode_of_a_canvas_leaves_keys_of_an_affinity(app, exclusive):
    group(exclusive.s("HH").set(affinity=Affinity(on_demand=False, exclusive="own"))).apply_async(on_demand=True)
    assert rules(app) == "key=own limit=1"
    chain(exclusive.s("HH"), exclusive.s()).set(affinity=Affinity(on_demand=True, exclusive="whole")).apply_async()
    assert rules(app) == "key=whole limit=1"


# -- publish_many and batches


def test_each_of_many_calls_has_its_own_key(app, exclusive):
    publish_many(exclusive, [("HH",), (None,), {"city": "B"}, (), ("HH", True)])
    found = sorted(text for _, text, _ in jobs(app))
    assert found == ["", "", "key=city%3AB limit=1", ONE, ONE]
    publish_many(exclusive, [(None,), ("HH",)])
    assert sorted(text for _, text, _ in jobs(app)) == ["", ONE]
    publish_many(exclusive, [("HH",), ("B",)], exclusive="k", on_demand=True)
    found = jobs(app)
    assert {text for _, text, _ in found} == {"key=k limit=1"}
    assert all(message["properties"][PROPERTY]["on_demand"] for _, _, message in found)
    publish_many(exclusive, [("HH",), ("B",)], exclusive=False)
    assert {text for _, text, _ in jobs(app)} == {""}


def test_publish_many_stops_at_a_call_without_a_key(app, new_task):
    task = new_task(Affinity(exclusive="{city}"), name="other")
    with refused("key of exclusive must be a text that is not empty, got: ''"):
        publish_many(task, [("HH",), ("",)])
    assert jobs(app) == []


@pytest.mark.skipif(not hasattr(Producer, "batch"), reason="kombu before 5.7 has no batch")
def test_kombu_batch_carries_keys(app, producer, exclusive):
    with producer.batch():
        exclusive.apply_async(("HH",), producer=producer)
        exclusive.apply_async(("B",), producer=producer, exclusive=False)
    assert sorted(text for _, text, _ in jobs(app)) == ["", ONE]


# -- plain kombu, and other queues


def test_message_of_plain_kombu_has_the_tasks_key(app, producer, exclusive):
    body = json.dumps([["HH"], {}, {}])
    options = {"content_type": "application/json", "content_encoding": "utf-8", "correlation_id": "an-id"}
    producer.publish(body, routing_key="celery", headers={"task": "proj.reroute", "id": "an-id"}, **options)
    assert rules(app) == ONE
    with refused("the arguments of a call of task proj.reroute cannot be read, so it has no key"):
        producer.publish(b"\x80", headers={"task": "proj.reroute", "id": "an-id"}, content_type="application/x-own")


def test_unscheduled_queue_ignores_keys_and_warns_once(valkey, redis_client, caplog):
    app = Celery("lists", broker=valkey.url)
    app.conf.update(broker_transport="celery_affinity:Transport", affinity_queues=["pdf"])
    option_resolution.warn_of_queue.cache_clear()  # another test's app has tasks of the same name
    app.send_task("far", exclusive=False)
    assert not caplog.text
    for _ in range(2):
        app.send_task("far", exclusive="k", rate=False)
    for message in map(json.loads, redis_client.lrange("celery", 0, -1)):
        assert not {"exclusive", "rate", PROPERTY} & message["properties"].keys()
    assert caplog.text.count("Jobs of task 'far' have a key, which has no effect on queue 'celery'") == 1
    app.close()
