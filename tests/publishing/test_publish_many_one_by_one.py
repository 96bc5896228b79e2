"""Many calls of one task for which Celery builds each message: eager apps, unscheduled queues, custom task classes."""

from celery import Celery, Task
from kombu import Exchange, Queue
from kombu.utils.json import loads

from celery_affinity import publish_many

from ..support.many_calls import messages, task


def test_one_of_two_queues_may_be_scheduled(app):
    app.conf.affinity_queues = ["news-here"]
    queues = [Queue(name, Exchange("news", "topic"), routing_key="news.#") for name in ("news-here", "news-there")]
    render = task(app, affinity=None)
    ids = publish_many(render, [("a",), ("b",), ("c",)], exchange="news", routing_key="news.x", declare=queues)
    assert [each["headers"]["id"] for each in messages(app, type_="news-here")] == list(ids)
    found = [loads(each.decode())["headers"]["id"] for each in app.redis.lrange("news-there", 0, -1)]
    assert found[::-1] == list(ids)


def test_eager_app_runs_each_call_and_has_the_results(app):
    app.conf.task_always_eager = True
    ids = publish_many(task(app, ignore_result=False), [("a",), ("b", 2)])
    assert [tuple(result.get()) for result in ids.results()] == [("a", 100), ("b", 2)]
    assert [result.id for result in ids.results()] == list(ids)
    assert messages(app) == []


def test_unscheduled_queue_gets_each_call(app):
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


def test_task_with_its_own_apply_async_gets_each_call(app):
    class Own(Task):
        calls = 0

        def apply_async(self, *args, **kwargs):
            Own.calls += 1
            return super().apply_async(*args, **kwargs)

    publish_many(task(app, base=Own), [("a",), ("b",)])
    assert Own.calls == 2


def test_task_that_names_each_call_gets_each_call(app):
    class Named(Task):
        def shadow_name(self, args, kwargs, options):
            return f"named {args[0]}"

    publish_many(task(app, base=Named), [("a",), ("b",)])
    assert [message["headers"]["shadow"] for message in messages(app)] == ["named a", "named b"]


def test_first_protocol_gets_each_call(app):
    app.conf.task_protocol = 1
    publish_many(task(app), [("a",), ("b",)])
    assert [loads(message["body"])["args"] for message in messages(app)] == [["a"], ["b"]]
