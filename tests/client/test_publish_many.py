"""Many calls of one task in few round trips: parts that calls share, parts of each call, and failures midway."""

# Longer than 300 lines: the parts that many calls share, and each way in which a call may fail.

import contextvars
import itertools
import logging
import pickle
import threading
import uuid
from contextlib import ExitStack, contextmanager, nullcontext

import kombu
import pytest
import redis
from celery import Celery, Task
from celery._state import _task_stack
from celery.exceptions import TimeoutError as ResultTimeout
from celery.signals import after_task_publish, before_task_publish
from celery.worker.request import Request
from kombu import Exchange, Queue, pools
from kombu.message import Message
from kombu.serialization import prepare_accept_content
from kombu.utils.json import loads

from celery_affinity import OptionError, PublishError, TaskIds, publish_many
from celery_affinity.client import envelope, unserved_warning
from celery_affinity.client import publish_many as many
from celery_affinity.observe.status import Report
from celery_affinity.rules.keys import Keys
from celery_affinity.server.reader import Reader
from celery_affinity.server.scheduler import Scheduler

from ..support.apps import APP
from ..support.ledger import Ledger
from ..support.processes import start_worker, wait_until


@pytest.fixture
def app(valkey, redis_client):
    app = Celery("many", broker=valkey.url, backend=valkey.url)
    app.conf.update(broker_transport="celery_affinity:Transport", task_ignore_result=True)
    app.redis = redis_client
    yield app
    app.close()
    pools.reset()  # the connections of producers, and the queues declared there


def task(app, **options):
    @app.task(name=f"task{len(app.tasks)}", shared=False, **{"affinity": "pdf", **options})
    def render(path, dpi=100):
        return path, dpi

    return render


@pytest.fixture
def away(monkeypatch):
    """Return a function that lets *count* round trips of a publish pass, and loses the replies of the next *times*."""
    publish = Scheduler.publish

    def away_after(count, times=1000, part=slice(None)):
        calls = itertools.count()

        def lossy(self, *jobs):
            call = next(calls)
            published = publish(self, *(jobs[part] if count <= call < count + times else jobs))
            if count <= call < count + times:
                raise redis.ConnectionError("the reply was lost")
            return published

        monkeypatch.setattr(Scheduler, "publish", lossy)
        monkeypatch.setattr(many, "_TOGETHER", 10)

    return away_after


def messages(app, type_="pdf", lane="queued.0"):
    """Return the messages that wait, in their order."""
    ids = app.redis.zrange(Keys().key("lane", type_, lane), 0, -1)
    return [envelope.read(app.redis.get(Keys().key("message", job_id.decode()))) for job_id in ids]


def arguments(app, **where):
    return [request(app, message).args for message in messages(app, **where)]


def request(app, message):
    """Return the request that a worker makes of a message."""
    properties = message["properties"]
    with app.pool.acquire() as connection:
        channel = connection.default_channel
        found = Message(
            channel.decode_body(message["body"], properties["body_encoding"]),
            channel=channel,
            content_type=message["content-type"],
            content_encoding=message["content-encoding"],
            properties=properties,
            headers=message["headers"],
            delivery_tag=properties["delivery_tag"],
            delivery_info=properties["delivery_info"],
            accept=prepare_accept_content(["json", "pickle", "yaml", "msgpack"]),
        )
        assert not found.errors
        return Request(found, app=app, task=app.tasks[message["headers"]["task"]])


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


def test_no_calls_are_none(app):
    assert list(publish_many(task(app), [])) == []


def test_many_calls_stay_in_order_and_are_taken_as_they_are_needed(app, monkeypatch):
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
    ("call", "said"),
    [
        ("ab", "call 1 must be a tuple of arguments, a mapping or a signature, got: 'ab'"),
        (7, "call 1 must be a tuple of arguments, a mapping or a signature, got: 7"),
    ],
)
def test_what_is_no_call_is_refused_with_its_number(app, call, said):
    with pytest.raises(OptionError, match=said):
        publish_many(task(app), [("a",), call])
    assert messages(app) == []


def test_a_signature_of_another_task_or_with_options_is_refused(app):
    render, other = task(app), task(app)
    for signature in (other.s("a"), render.s("a").set(countdown=5)):
        with pytest.raises(OptionError, match=r"must be a signature of task.* without options"):
            publish_many(render, [signature])


def test_calls_with_other_arguments_than_the_task_takes_are_refused(app):
    with pytest.raises(TypeError):
        publish_many(task(app), [("a",), {"pth": "b"}])
    assert messages(app) == []


def test_what_is_no_task_and_ids_of_the_callers_own_are_refused(app):
    with pytest.raises(OptionError, match="publish_many takes a task, got: 'name'"):
        publish_many("name", [()])
    with pytest.raises(OptionError, match="task_id"):
        publish_many(task(app), [("a",)], task_id="an-id")


# -- what they say


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
def test_a_message_is_what_apply_async_makes_of_the_call_but_for_its_ids(app, options):
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


def test_what_a_task_needs_and_where_it_is_routed_counts(app):
    app.conf.task_routes = {"routed": {"queue": "excel"}}

    @app.task(name="routed", shared=False)
    def routed(number):
        return number

    publish_many(routed, [(1,), (2,)], countdown=60)
    publish_many(routed, [(3,)], queue="index", on_demand=True)
    status = Report(Reader(app.redis, Keys())).status()
    assert status.scheduled == 2
    assert arguments(app, type_="index", lane="demand.0") == [[3]]


def test_an_exchange_with_two_queues_has_each_call_in_both(app):
    queues = [Queue(name, Exchange("news", "topic"), routing_key="news.#") for name in ("one", "two")]
    ids = publish_many(
        task(app, affinity=None), [("a",), ("b",)], exchange="news", routing_key="news.x", declare=queues
    )
    for queue in ("one", "two"):
        assert [each["headers"]["id"] for each in messages(app, type_=queue)] == list(ids)


def test_before_task_publish_is_heard_once_and_what_it_adds_is_in_every_message(app):
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


# -- what else is published meanwhile


@pytest.fixture
def audit(app):
    @app.task(name="audit", shared=False, affinity="audits")
    def audit(*_):
        pass

    return audit


@contextmanager
def heard(publish):
    """Call *publish* before and after each publish of a task, except for publishes by *publish*."""
    busy = []

    def hear(sender, headers, **_):
        if sender != "audit" and not busy:
            busy.append(sender)
            try:
                publish(headers["id"])
            finally:
                busy.clear()

    for sent in (before_task_publish, after_task_publish):
        sent.connect(hear)
    try:
        yield
    finally:
        for sent in (before_task_publish, after_task_publish):
            sent.disconnect(hear)


@pytest.mark.parametrize("way", ["delay", "the same id", "publish_many", "kombu", "a batch", "a thread", "itself"])
def test_what_a_handler_publishes_goes_its_own_way(app, audit, way):
    render = task(app)

    def publish(task_id):
        if way == "delay":
            audit.delay("by hand")
        elif way == "the same id":
            audit.apply_async(("by hand",), task_id=task_id)
        elif way == "publish_many":
            publish_many(audit, [("by hand",)])
        elif way == "a thread":
            thread = threading.Thread(target=contextvars.copy_context().run, args=(audit.delay, "by hand"))
            thread.start()
            thread.join()
        elif way == "itself":
            render.apply_async(("by hand",), task_id=task_id, affinity="audits")
        else:
            with app.connection_for_write() as connection, connection.Producer() as producer, ExitStack() as stack:
                if way == "a batch" and hasattr(producer, "batch"):
                    stack.enter_context(producer.batch())
                audit.apply_async(("by hand",), producer=producer)
                if way == "kombu":
                    headers = {"task": "audit", "id": task_id}
                    producer.publish([["raw"], {}, {}], headers=headers, serializer="json", routing_key="celery")

    with heard(publish):
        ids = publish_many(render, [("a",), ("b",), ("c",)])
    assert [each["headers"]["id"] for each in messages(app)] == list(ids)
    assert arguments(app) == [["a"], ["b"], ["c"]]
    found = [loads(each["body"])[0] for each in messages(app, type_="audits")]
    assert found == ([["by hand"], ["raw"]] * 2 if way == "kombu" else [["by hand"]] * 2)


def test_a_handler_that_fails_keeps_nothing_from_being_published(app):
    def fail(_):
        raise RuntimeError("a handler's own")

    with heard(fail):
        publish_many(task(app), [("a",), ("b",)])
    assert arguments(app) == [["a"], ["b"]]


def test_within_a_batch_of_kombus_it_goes_its_own_way(app, audit):
    if kombu.VERSION[:2] < (5, 7):
        pytest.skip("kombu before 5.7 has no batches")
    with app.producer_pool.acquire(block=True) as producer, producer.batch():
        audit.apply_async((1,), producer=producer)
        publish_many(task(app), [("a",), ("b",)], producer=producer)
        audit.apply_async((2,), producer=producer)
    assert arguments(app) == [["a"], ["b"]]
    assert arguments(app, type_="audits") == [[1], [2]]


def test_a_logger_that_publishes_disturbs_neither_a_batch_nor_many(app, audit, monkeypatch):
    """The warning of a type that nobody serves comes in the midst of a publish."""
    publish, fresh = Scheduler.publish, []

    def noting(*args):
        published = publish(*args)
        fresh.extend(each.fresh for each in published)
        return published

    monkeypatch.setattr(Scheduler, "publish", noting)

    class Publishing(logging.Handler):
        def emit(self, record):
            audit.apply_async(("logged",), **options)

    render, handler, options = task(app, affinity="nobody-at-all"), Publishing(), {}
    unserved_warning.logger.addHandler(handler)
    try:
        publish_many(render, [("a",), ("b",)])
        with app.producer_pool.acquire(block=True) as producer:
            options.update(producer=producer)
            with producer.batch(max_size=1) if hasattr(producer, "batch") else nullcontext():
                for number in range(3):
                    audit.apply_async((number,), producer=producer, affinity=f"nobody-{number}")
    finally:
        unserved_warning.logger.removeHandler(handler)
    assert arguments(app, type_="nobody-at-all") == [["a"], ["b"]]
    for number in range(3):
        assert arguments(app, type_=f"nobody-{number}") == [[number]]
    assert set(map(tuple, arguments(app, type_="audits"))) == {("logged",)}
    assert all(fresh), "nothing is sent twice"


def test_of_two_queues_one_may_be_scheduled(app):
    app.conf.affinity_queues = ["news-here"]
    queues = [Queue(name, Exchange("news", "topic"), routing_key="news.#") for name in ("news-here", "news-there")]
    render = task(app, affinity=None)
    ids = publish_many(render, [("a",), ("b",), ("c",)], exchange="news", routing_key="news.x", declare=queues)
    assert [each["headers"]["id"] for each in messages(app, type_="news-here")] == list(ids)
    found = [loads(each.decode())["headers"]["id"] for each in app.redis.lrange("news-there", 0, -1)]
    assert found[::-1] == list(ids)


def test_within_a_task_all_calls_are_its_children_and_none_is_in_its_trail(app):
    parent = task(app)
    _task_stack.push(parent)
    parent.push_request(id="a-parent", root_id="a-root", called_directly=False, children=[])
    try:
        publish_many(task(app), [("a",), ("b",)])
        assert parent.request.children == []
    finally:
        parent.pop_request()
        _task_stack.pop()
    headers = [message["headers"] for message in messages(app)]
    assert [(each["parent_id"], each["root_id"]) for each in headers] == [("a-parent", "a-root")] * 2


def test_a_refused_option_publishes_nothing(app):
    with pytest.raises(OptionError, match="priority"):
        publish_many(task(app), [("a",)], priority=11)
    assert messages(app) == []


def test_types_that_nobody_serves_are_warned_of_once(app, caplog):
    publish_many(task(app, affinity="nobody serves these many"), [(number,) for number in range(30)])
    assert caplog.text.count("No live worker serves type 'nobody serves these many'") == 1


# -- where Celery makes each message


def test_an_eager_app_runs_each_call_and_has_the_results(app):
    app.conf.task_always_eager = True
    ids = publish_many(task(app, ignore_result=False), [("a",), ("b", 2)])
    assert [tuple(result.get()) for result in ids.results()] == [("a", 100), ("b", 2)]
    assert [result.id for result in ids.results()] == list(ids)
    assert messages(app) == []


def test_a_queue_that_is_not_scheduled_gets_each_call(app):
    app.conf.affinity_queues = ["pdf"]
    ids = publish_many(task(app, affinity=None), [("a",), ("b",), ("c",)])
    found = [loads(each.decode())["headers"]["id"] for each in app.redis.lrange("celery", 0, -1)]
    assert found[::-1] == list(ids)


def test_another_transport_gets_each_call(valkey, redis_client):
    app = Celery("stock", broker=valkey.url)
    app.conf.task_ignore_result = True
    ids = publish_many(task(app), [("a",), ("b",)])
    found = [loads(each.decode())["headers"]["id"] for each in redis_client.lrange("celery", 0, -1)]
    assert found[::-1] == list(ids)
    app.close()


def test_a_task_with_a_way_of_its_own_gets_each_call(app):
    class Own(Task):
        calls = 0

        def apply_async(self, *args, **kwargs):
            Own.calls += 1
            return super().apply_async(*args, **kwargs)

    publish_many(task(app, base=Own), [("a",), ("b",)])
    assert Own.calls == 2


def test_a_task_that_names_each_call_gets_each_call(app):
    class Named(Task):
        def shadow_name(self, args, kwargs, options):
            return f"named {args[0]}"

    publish_many(task(app, base=Named), [("a",), ("b",)])
    assert [message["headers"]["shadow"] for message in messages(app)] == ["named a", "named b"]


def test_the_first_protocol_gets_each_call(app):
    app.conf.task_protocol = 1
    publish_many(task(app), [("a",), ("b",)])
    assert [loads(message["body"])["args"] for message in messages(app)] == [["a"], ["b"]]


# -- ids and results


def test_ids_are_a_sequence_that_is_made_as_it_is_read(app):
    ids = publish_many(task(app), [(number,) for number in range(5)])
    assert isinstance(ids, TaskIds)
    assert len(ids) == 5
    assert ids[-1] == list(ids)[4] == ids[3:][1]
    assert ids[2] in ids
    assert len(set(ids)) == 5
    assert {uuid.UUID(each).version for each in ids} == {8}
    with pytest.raises(IndexError):
        ids[5]


def test_two_publishes_have_nothing_in_common(app):
    render = task(app)
    assert not set(publish_many(render, [("a",)])) & set(publish_many(render, [("a",)]))
    assert len(messages(app)) == 2


def test_workers_run_them_and_their_results_come(valkey, redis_client, tmp_path, load_app):
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


# -- where it ends midway


def test_a_lost_reply_is_asked_for_again_and_nothing_is_published_twice(app, away):
    away(1, times=1)
    ids = publish_many(task(app), [(number,) for number in range(35)], retry_policy={"interval_start": 0})
    assert [message["headers"]["id"] for message in messages(app)] == list(ids)


@pytest.mark.parametrize("part", [slice(0), slice(4), slice(None)], ids=["none of it", "some", "all of it"])
def test_a_server_that_goes_midway_is_told_and_the_rest_is_published_later(app, away, monkeypatch, part):
    render, calls = task(app), [(number,) for number in range(35)]
    away(2, part=part)
    with pytest.raises(
        PublishError, match=r"20 calls of task.* were published, and perhaps some of the next 10"
    ) as ended:
        publish_many(render, calls, retry=False)
    assert ended.value.published == 20
    assert ended.value.__cause__ is not None
    monkeypatch.undo()
    passed_on = pickle.loads(pickle.dumps(ended.value))
    ids = publish_many(render, calls, resume=passed_on)
    assert len(ids) == 35
    assert arguments(app) == [[number] for number in range(35)]
    assert [message["headers"]["id"] for message in messages(app)] == list(ids)


def test_a_server_that_is_not_there_at_first_is_told_as_well(app, away, monkeypatch):
    """The server may have the first calls: a caller that repeats them is to give the same ids."""
    away(0)
    with pytest.raises(PublishError) as ended:
        publish_many(task(app), [("a",)], retry=False)
    assert ended.value.published == 0
    monkeypatch.undo()
    publish_many(task(app), [("a",)], resume=ended.value)


def test_calls_that_end_with_an_error_say_how_far_they_came(app, monkeypatch):
    monkeypatch.setattr(many, "_TOGETHER", 10)

    def calls():
        yield from ((number,) for number in range(25))
        raise OSError("the file ended")

    with pytest.raises(PublishError, match=r"20 calls of .* were published, then: the file ended") as ended:
        publish_many(task(app), calls())
    assert ended.value.published == 20
    assert len(messages(app)) == 20


def test_calls_that_end_before_the_first_is_published_raise_what_they_raised(app):
    def calls():
        yield ("a",)
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        publish_many(task(app), calls())


def test_a_resumed_publish_takes_up_where_each_call_goes_by_itself(app):
    app.conf.affinity_queues = ["pdf"]
    render = task(app, affinity=None)

    def calls():
        yield from [("a",), ("b",)]
        raise OSError("the file ended")

    with pytest.raises(PublishError) as ended:
        publish_many(render, calls())
    ids = publish_many(render, [("a",), ("b",), ("c",)], resume=ended.value)
    found = [loads(each.decode())["headers"]["id"] for each in app.redis.lrange("celery", 0, -1)]
    assert found[::-1] == list(ids)
