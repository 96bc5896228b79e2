"""Many calls of one task while handlers, batches, loggers and running tasks publish as well."""

import contextvars
import logging
import threading
from contextlib import ExitStack, contextmanager, nullcontext

import kombu
import pytest
from celery._state import _task_stack
from celery.signals import after_task_publish, before_task_publish
from kombu.utils.json import loads

from celery_affinity import publish_many
from celery_affinity.publishing import bulk
from celery_affinity.scheduler.scheduler import Scheduler

from ..support.many_calls import arguments, messages, task


@pytest.fixture
def audit(app):
    @app.task(name="audit", shared=False, affinity="audits")
    def audit(*_):
        pass

    return audit


@contextmanager
def heard(publish):
    """Call *publish* before and after each publish of a task, except for nested publishes."""
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
def test_publishes_of_a_handler_are_separate(app, audit, way):
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


def test_failing_handler_prevents_no_publish(app):
    def fail(_):
        raise RuntimeError("a handler's own")

    with heard(fail):
        publish_many(task(app), [("a",), ("b",)])
    assert arguments(app) == [["a"], ["b"]]


def test_publish_many_within_a_kombu_batch_is_separate(app, audit):
    if kombu.VERSION[:2] < (5, 7):
        pytest.skip("kombu before 5.7 has no batches")
    with app.producer_pool.acquire(block=True) as producer, producer.batch():
        audit.apply_async((1,), producer=producer)
        publish_many(task(app), [("a",), ("b",)], producer=producer)
        audit.apply_async((2,), producer=producer)
    assert arguments(app) == [["a"], ["b"]]
    assert arguments(app, type_="audits") == [[1], [2]]


def test_publishing_logger_disturbs_no_batch_or_bulk_publish(app, audit, monkeypatch):
    """The warning of an unserved type occurs during a publish."""
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
    bulk.logger.addHandler(handler)
    try:
        publish_many(render, [("a",), ("b",)])
        with app.producer_pool.acquire(block=True) as producer:
            options.update(producer=producer)
            with producer.batch(max_size=1) if hasattr(producer, "batch") else nullcontext():
                for number in range(3):
                    audit.apply_async((number,), producer=producer, affinity=f"nobody-{number}")
    finally:
        bulk.logger.removeHandler(handler)
    assert arguments(app, type_="nobody-at-all") == [["a"], ["b"]]
    for number in range(3):
        assert arguments(app, type_=f"nobody-{number}") == [[number]]
    assert set(map(tuple, arguments(app, type_="audits"))) == {("logged",)}
    assert all(fresh), "nothing is sent twice"


def test_calls_within_a_task_are_children_outside_its_trail(app):
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
