"""Many calls of one task in few round trips: their messages and ids."""

import itertools
import uuid

import pytest
from celery.exceptions import TimeoutError as ResultTimeout
from celery.signals import before_task_publish
from kombu import Exchange, Queue

from celery_affinity import OptionError, TaskIds, publish_many
from celery_affinity.publishing import bulk as many
from celery_affinity.reports.status import Report
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.apps import APP
from ..support.ledger import Ledger
from ..support.many_calls import arguments, messages, request, task
from ..support.processes import start_worker, wait_until

# -- the calls


def test_calls_are_tuples_lists_mappings_or_signatures(app):
    render = task(app)
    ids = publish_many(render, [("a",), ["b", 200], {"path": "c", "dpi": 300}, render.s("d", dpi=400)])
    found = [request(app, message) for message in messages(app)]
    assert [(each.args, each.kwargs) for each in found] == [
        (["a"], {}),
        (["b", 200], {}),
        ([], {"path": "c", "dpi": 300}),
        (["d"], {"dpi": 400}),
    ]
    assert [each.id for each in found] == list(ids)


def test_publish_many_accepts_an_empty_list(app):
    assert list(publish_many(task(app), [])) == []


def test_many_calls_stay_in_order_and_are_read_lazily(app, monkeypatch):
    monkeypatch.setattr(many, "_TOGETHER", 10)
    taken = []
    publish = Scheduler.publish

    def ahead(self, *jobs):
        taken.append(calls.taken - app.redis.zcard(Keys().key("lane", "pdf", "queued.0")))
        return publish(self, *jobs)

    class Calls:
        taken = 0

        def __iter__(self):
            for number in range(35):
                self.taken += 1
                yield (number,)

    calls = Calls()
    monkeypatch.setattr(Scheduler, "publish", ahead)
    publish_many(task(app), calls)
    assert arguments(app) == [[number] for number in range(35)]
    assert max(taken) <= 11


@pytest.mark.parametrize(
    ("call", "options", "error", "said"),
    [
        ("ab", {}, OptionError, "call 1 must be a tuple of arguments, a mapping or a signature, got: 'ab'"),
        (7, {}, OptionError, "call 1 must be a tuple of arguments, a mapping or a signature, got: 7"),
        ({"pth": "b"}, {}, TypeError, "pth"),
        (("b",), {"priority": "high"}, OptionError, "priority"),
        (("b",), {"task_id": "an-id"}, OptionError, "task_id"),
    ],
)
def test_invalid_call_or_option_publishes_nothing(app, call, options, error, said):
    with pytest.raises(error, match=said):
        publish_many(task(app), [("a",), call], **options)
    assert messages(app) == []


def test_signature_of_another_task_or_with_options_is_refused(app):
    render, other = task(app), task(app)
    for signature in (other.s("a"), render.s("a").set(countdown=5)):
        with pytest.raises(OptionError, match=r"must be a signature of task.* without options"):
            publish_many(render, [signature])


def test_name_of_a_task_is_refused():
    with pytest.raises(OptionError, match="publish_many takes a task, got: 'name'"):
        publish_many("name", [()])


# -- their messages


def by_apply_async(app, render, call, **options):
    render.apply_async(*call, task_id="an-id", **options)
    (message,) = itertools.chain(*(messages(app, lane=lane) for lane in ("queued.0", "queued.7", "demand.0")))
    return message


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"priority": 7},
        {"on_demand": True},
        {"headers": {"mine": 1}, "shadow": "another name"},
        {"argsrepr": "***", "kwargsrepr": "{}"},
        {"expires": 3600, "time_limit": 10, "soft_time_limit": 5},
        {"reply_to": "somewhere", "group_id": "a-group", "root_id": "a-root", "parent_id": "a-parent"},
        {"serializer": "pickle"},
        {"serializer": "yaml"},
        {"compression": "gzip"},
    ],
    ids=str,
)
def test_message_equals_one_of_apply_async_except_ids(app, options):
    render = task(app)
    message = by_apply_async(app, render, (("b",), {"dpi": 7}), **options)
    app.redis.flushdb()
    ids = publish_many(render, [("a",), render.s("b", dpi=7)], **options)
    lane = "queued.7" if "priority" in options else "demand.0" if "on_demand" in options else "queued.0"
    _, ours = messages(app, lane=lane)
    own_id = ids[1]
    assert ours["properties"].pop("correlation_id") == own_id
    assert ours["headers"].pop("id") == own_id
    assert ours["headers"]["root_id"] == options.get("root_id", own_id)
    for each in (ours, message):
        each["properties"].pop("delivery_tag")
        each["headers"].pop("root_id")
        if "expires" in options:
            assert each["headers"].pop("expires")
            assert each["properties"].pop("expiration")
        if "compression" in options:
            each.pop("body")  # gzip writes the time as well
    del message["headers"]["id"], message["properties"]["correlation_id"]
    assert ours == message


def test_links_are_in_every_message(app):
    render = task(app)
    publish_many(render, [("a",), ("b",)], link=render.s(1), serializer="pickle")
    for message in messages(app):
        body = request(app, message).message.payload
        assert body[2]["callbacks"][0]["args"] == (1,)


@pytest.mark.parametrize(("serializer", "compression"), [("pickle", "bzip2"), ("msgpack", None), ("json", "zlib")])
def test_serializer_and_compression_of_the_app_are_kept(app, serializer, compression):
    app.conf.update(task_serializer=serializer, task_compression=compression)
    publish_many(task(app), [("a",), ("é",)])
    assert [list(each) for each in arguments(app)] == [["a"], ["é"]]


def test_type_and_route_of_the_task_apply(app):
    app.conf.task_routes = {"routed": {"queue": "excel"}}

    @app.task(name="routed", shared=False)
    def routed(number):
        return number

    publish_many(routed, [(1,), (2,)], countdown=60)
    publish_many(routed, [(3,)], queue="index", on_demand=True)
    status = Report(Reader(app.redis, Keys())).status()
    assert status.scheduled == 2
    assert arguments(app, type_="index", lane="demand.0") == [[3]]


def test_exchange_with_two_queues_gets_each_call_in_both(app):
    queues = [Queue(name, Exchange("news", "topic"), routing_key="news.#") for name in ("one", "two")]
    ids = publish_many(
        task(app, affinity=None), [("a",), ("b",)], exchange="news", routing_key="news.x", declare=queues
    )
    for queue in ("one", "two"):
        assert [each["headers"]["id"] for each in messages(app, type_=queue)] == list(ids)


def test_before_task_publish_is_sent_once_for_every_message(app):
    heard = []

    @before_task_publish.connect(weak=False)
    def add(sender, headers, **_):
        heard.append(sender)
        headers["trace"] = "a-trace"

    try:
        publish_many(task(app), [("a",), ("b",), ("c",)])
    finally:
        before_task_publish.disconnect(add)
    assert len(heard) == 1
    assert [message["headers"]["trace"] for message in messages(app)] == ["a-trace"] * 3


def test_unserved_types_are_warned_of_once(app, caplog):
    publish_many(task(app, affinity="nobody serves these many"), [(number,) for number in range(30)])
    assert caplog.text.count("No live worker serves type 'nobody serves these many'") == 1


# -- ids and results


def test_ids_are_a_lazily_computed_sequence(app):
    ids = publish_many(task(app), [(number,) for number in range(5)])
    assert isinstance(ids, TaskIds)
    assert len(ids) == 5
    assert ids[-1] == list(ids)[4] == ids[3:][1]
    assert ids[2] in ids
    assert len(set(ids)) == 5
    assert {uuid.UUID(each).version for each in ids} == {8}
    with pytest.raises(IndexError):
        ids[5]


def test_two_publishes_share_no_id(app):
    render = task(app)
    assert not set(publish_many(render, [("a",)])) & set(publish_many(render, [("a",)]))
    assert len(messages(app)) == 2


def test_workers_run_the_calls_and_store_their_results(valkey, redis_client, tmp_path, load_app):
    app = load_app(APP)
    ledger = Ledger(tmp_path / "ledger")
    start_worker(APP, valkey.url, ["pdf"], pool="threads", env={"LEDGER": str(ledger.path)})
    late = app.tasks["tests.support.apps.typed.late"]
    ids = publish_many(late, [(f"job-{number}", 0) for number in range(30)], affinity="pdf", ignore_result=False)
    try:
        for result in ids.results():
            result.get(timeout=30)
    except ResultTimeout:
        pytest.fail(f"{ledger.ends()}")
    assert set(ledger.starts().values()) == {1}
    wait_until(lambda: len(ledger.ends()) == 30, 10, "all ran")
