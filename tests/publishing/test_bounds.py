"""Calls to a bounded type are refused or drop a job; some calls pass every bound."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import kombu
import pytest
from celery import chain
from celery._state import _task_stack

from celery_affinity import Affinity, Bound, Merge, PublishError, QueueFull, publish_many
from celery_affinity.publishing.publish_call import publishing_follow_ups
from celery_affinity.schema.keys import Keys

from ..support.many_calls import arguments, messages, task


@pytest.fixture
def bounded(app):
    """Return a function that bounds type pdf in *app*, and returns a task of that type."""

    def make(most=2, full="refuse", **options):
        app.conf.affinity_max_pending = {"p*": Bound(most, full)}
        return task(app, **options)

    return make


def test_call_beyond_the_bound_is_refused_without_a_trace(app, bounded):
    render = bounded()
    render.delay("a")
    render.delay("b")
    before = app.redis.dbsize()
    full = r"type .pdf. is full: 2 of its jobs wait, and affinity_max_pending allows 2"
    with pytest.raises(QueueFull, match=full) as refused:
        render.apply_async(("c",), retry=True, retry_policy={"max_retries": 3, "interval_start": 30})
    assert (refused.value.type, refused.value.pending, refused.value.most) == ("pdf", 2, 2)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    assert app.redis.dbsize() == before
    assert app.redis.hget(Keys().key("counters"), "refused pdf") == b"1"
    render.apply_async(("other",), queue="excel")
    assert arguments(app) == [["a"], ["b"]]


def test_scheduled_jobs_do_not_count_for_the_bound(app, bounded):
    render = bounded(1)
    for number in range(3):
        render.apply_async((number,), countdown=60)
    render.delay("now")
    render.apply_async(("later",), countdown=60)
    with pytest.raises(QueueFull):
        render.delay("again")


def test_process_without_the_setting_is_not_refused(app):
    for number in range(3):
        task(app).delay(number)
    assert len(messages(app)) == 3


def test_call_that_joins_a_batch_passes_the_bound(app, bounded):
    render = bounded(1, affinity=Affinity("pdf", merge=Merge("{path}", keep="last")))
    render.delay("a")
    render.delay("a")
    with pytest.raises(QueueFull):
        render.delay("b")


def test_follow_up_calls_of_a_run_pass_the_bound(app, bounded):
    render = bounded(1)
    render.delay("first")
    for publish in (
        lambda: render.apply_async(("a",), parent_id="run", root_id="run"),  # like a follow-up call after a run
        lambda: render.apply_async(("b",), retries=1),  # like a retry by the main process of a worker
    ):
        publish()
    with publishing_follow_ups():
        render.delay("c")
    render.push_request(id="run", called_directly=False, args=(), kwargs={})
    _task_stack.push(render)
    try:
        render.delay("d")
        chain(render.si("e"), render.si("f")).delay()
        with ThreadPoolExecutor() as threads, pytest.raises(QueueFull):  # calls from other threads are new work
            threads.submit(render.delay, "thread").result()
    finally:
        _task_stack.pop()
        render.pop_request()
    assert arguments(app) == [["first"], ["a"], ["b"], ["c"], ["d"], ["e"]]
    with pytest.raises(QueueFull):
        render.delay("fresh")
    with pytest.raises(QueueFull):
        chain(render.si("fresh"), render.si("next")).delay()


def test_publish_many_is_bounded_per_part(app, bounded):
    render, calls = bounded(10), [(number,) for number in range(13)]
    with pytest.raises(PublishError, match=r"10 calls of task.* were published: type 'pdf' is full") as ended:
        publish_many(render, calls)
    assert ended.value.published == 10
    assert isinstance(ended.value.__cause__, QueueFull)
    with pytest.raises(QueueFull):
        publish_many(render, [("late",)])
    app.redis.flushall()
    assert len(publish_many(render, calls, resume=ended.value)) == 13
    assert arguments(app) == [[10], [11], [12]]


def test_repeated_call_is_recognised_and_not_refused(app, bounded, monkeypatch):
    render = bounded(2)
    ids = publish_many(render, [(1,), (2,)])
    again = PublishError("lost", ids.publish_id, 0)
    assert list(publish_many(render, [(1,), (2,)], resume=again)) == list(ids)
    assert len(messages(app)) == 2


@pytest.mark.parametrize(("full", "kept"), [("drop-oldest", [2, 3]), ("drop-newest", [0, 1])])
def test_oldest_or_newest_job_is_dropped_with_a_reason(app, bounded, full, kept):
    render = bounded(2, full)
    results = [render.delay(number) for number in range(4)]
    assert arguments(app) == [[number] for number in kept]
    jobs = [app.redis.get(Keys().key("task", result.id)).decode() for result in results]
    whys = [app.redis.hget(Keys().key("job", job), "why") for job in jobs]
    assert whys == [None if number in kept else b"dropped: 2 jobs of its type waited" for number in range(4)]
    assert app.redis.hget(Keys().key("counters"), "dropped pdf") == b"2"


def test_two_concurrent_publishers_never_exceed_the_bound(app, bounded):
    render, refused = bounded(20), []

    def publish():
        for number in range(30):
            try:
                render.delay(number)
            except QueueFull:
                refused.append(number)

    threads = [threading.Thread(target=publish) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(messages(app)) == 20
    assert len(refused) == 70


@pytest.mark.skipif(kombu.VERSION[:2] < (5, 7), reason="kombu before 5.7 has no batches")
def test_refused_jobs_of_a_kombu_batch_stay_in_it(app, bounded):
    render = bounded(2)
    render.delay("first")
    render.delay("second")
    with app.producer_pool.acquire() as producer, producer.batch() as batch:
        render.apply_async(("third",), producer=producer)
        with pytest.raises(QueueFull):
            batch.flush()
        app.redis.flushall()
    assert arguments(app) == [["third"]]
