"""``start_within``, ``deadline`` and sizes: the words of the due times of the jobs that each way to publish makes."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
import redis
from celery import beat, chain, chord, group
from celery.exceptions import Retry

from celery_affinity import Affinity, Merge, OptionError, publish_many
from celery_affinity.policy.run_times import RunTime
from celery_affinity.publishing import recurring
from celery_affinity.publishing.message import PROPERTY
from celery_affinity.publishing.validation import app_complaints, check_app
from celery_affinity.scheduler.messages import DueCall
from celery_affinity.scheduler.reader import Reader
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.messages import running
from ..support.misspellings import nothing, refused


class Published:
    """Jobs that were published, and their messages."""

    def __init__(self, monkeypatch):
        self.jobs = []
        original = Scheduler.publish

        def publish(scheduler, *jobs):
            self.jobs += jobs
            return original(scheduler, *jobs)

        monkeypatch.setattr(Scheduler, "publish", publish)

    def of(self, publish):
        """Return the jobs that *publish* adds."""
        self.jobs.clear()
        publish()
        return list(self.jobs)

    def due(self, publish):
        """Return the words of the only job that *publish* adds, by letter, in seconds."""
        (job,) = self.of(publish)
        return words(job)


def words(job):
    return {word[0]: int(word[1:]) / 1_000_000 for word in job.due.split()}


def soon(seconds):
    """Return a time in *seconds*, measured here: a publish in between takes less than 5 s."""
    return pytest.approx(seconds, abs=5)


@pytest.fixture
def published(app, monkeypatch):
    return Published(monkeypatch)


@pytest.fixture
def task(app):
    def render(pages=1, scale=2):
        pass

    return lambda name="shop.render", **options: app.task(name=name, shared=False, **options)(render)


def message(job):
    return json.loads(job.message)


def in_time(seconds):
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_call_without_due_time_and_size_has_no_words(published, task):
    assert published.of(task().delay)[0].due == ""
    assert PROPERTY not in message(published.jobs[0])["properties"]


def test_every_place_of_start_within_reaches_the_job(app, published, task):
    app.conf.affinity_task_rules = {"shop.named": {"start_within": 5}}
    app.conf.task_routes = {"shop.routed": {"start_within": 4}, "shop.affine": {"affinity": {"start_within": 3}}}
    calls = {
        1: lambda: task().apply_async(start_within=1),
        2: lambda: task().apply_async(affinity=Affinity(start_within=2)),
        3: task("shop.affine").delay,
        4: task("shop.routed", start_within=9).delay,
        5: task("shop.named").delay,
        6: task("shop.own", affinity=Affinity(start_within=6)).delay,
        7: task("shop.attribute", start_within=7).delay,
        8: task().s().set(start_within=8).delay,
        0.25: lambda: app.send_task("shop.unknown", start_within=0.25),
    }
    for seconds, call in calls.items():
        assert published.due(call) == {"w": seconds}
    assert published.due(lambda: app.send_task("shop.named")) == {"w": 5}
    assert "start_within" not in message(published.jobs[0])["properties"]


def test_deadline_counts_from_the_call_or_is_a_time(app, published, task):
    for deadline in (60, in_time(60), in_time(60).isoformat()):
        due = published.due(lambda deadline=deadline: task().apply_async(deadline=deadline, start_within=7))
        assert due == {"w": 7, "d": soon(60)}
    assert published.due(lambda: task().s().set(deadline=60).apply_async(countdown=10)) == {"d": soon(60)}
    assert published.due(lambda: task().apply_async(deadline=in_time(1e11))) == {"d": soon(1e11)}


def test_deadline_that_cannot_be_met_is_published_and_logged(published, task, caplog):
    assert published.due(lambda: task().apply_async(deadline=in_time(-60))) == {"d": soon(-60)}
    assert re.search(
        r"The deadline 20\S+ of a call of task shop\.render cannot be met: it is 60\.\d s before", caplog.text
    )
    caplog.clear()
    published.due(lambda: task().apply_async(deadline=60, countdown=100))
    assert "it is 40.0 s before the call can start" in caplog.text
    caplog.clear()
    published.due(lambda: task().apply_async(deadline=60))
    assert not caplog.text


def test_size_of_a_call_is_published_and_its_errors_are_not_raised(app, published, task, caplog):
    app.conf.affinity_task_rules = {"shop.named": {"size": "{scale}"}}
    sized = task(affinity=Affinity(size="{pages}"))
    assert published.due(lambda: sized.delay(12)) == {"s": 12}
    assert published.due(lambda: sized.apply_async((0.5,), start_within=1, deadline=2)) == {
        "w": 1,
        "d": soon(2),
        "s": 0.5,
    }
    assert published.due(task("shop.named").delay) == {"s": 2}
    assert published.due(lambda: app.send_task("shop.named", kwargs={"scale": 3})) == {"s": 3}
    assert not caplog.text
    for pages in ("many", -1, 1e13):
        caplog.clear()
        assert published.due(lambda pages=pages: sized.delay(pages)) == {}
        assert "The size of a call of task shop.render is unknown" in caplog.text
    fails = task("shop.fails", affinity=Affinity(size=lambda args, kwargs: 1 / 0))
    assert published.due(fails.delay) == {}
    assert published.due(lambda: sized.delay(None)) == {}


def test_all_calls_of_publish_many_have_their_sizes(published, task):
    sized = task(affinity=Affinity(size="{pages}"))
    jobs = published.of(lambda: publish_many(sized, [(1,), {"pages": 2}, ("many",)], deadline=60, start_within=5))
    assert [words(job) for job in jobs] == [
        {"w": 5, "d": soon(60), "s": 1},
        {"w": 5, "d": soon(60), "s": 2},
        {"w": 5, "d": soon(60)},
    ]
    assert [job.due for job in published.of(lambda: publish_many(task("shop.plain"), [(1,), (2,)]))] == ["", ""]


def test_batch_of_a_producer_has_due_times(app, published, producer, task, monkeypatch):
    sent = []
    monkeypatch.setattr(Scheduler, "send_publish", lambda scheduler, in_flight, jobs: sent.extend(jobs))
    if not hasattr(producer, "batch"):
        pytest.skip("kombu before 5.7")
    with producer.batch():
        task().apply_async(start_within=3, producer=producer)
    assert [job.due for job in published.jobs] == ["w3000000"]


def test_kombu_alone_publishes_due_times(app, published, producer):
    body, headers = ([], {}, {}), {"task": "shop.render", "id": "t1"}
    for deadline in (60, in_time(60).isoformat()):
        properties = {"deadline": deadline, "start_within": 5}
        publish = lambda: producer.publish(body, routing_key="celery", headers=headers, **properties)  # noqa: E731, B023
        assert published.due(publish) == {"w": 5, "d": soon(60)}


def test_retry_keeps_the_deadline_and_starts_anew_within(published, task):
    retried = task(bind=True)
    (job,) = published.of(lambda: retried.apply_async(deadline=in_time(60), start_within=5))
    first = message(job)
    assert first["properties"][PROPERTY].keys() == {"start_within", "deadline"}

    def retry(**options):
        with running(retried, {**first, "headers": {**first["headers"], "id": job.task_id}}), pytest.raises(Retry):
            retried.retry(**options)

    assert published.due(lambda: retry(countdown=10)) == {"w": 5, "d": soon(60)}
    assert message(published.jobs[0])["properties"][PROPERTY] == first["properties"][PROPERTY]
    assert published.due(lambda: retry(deadline=100, start_within=1)) == {"w": 1, "d": soon(100)}


def deadlines_in(value):
    """Return the deadlines of all signatures in *value*, at any depth, by task."""
    if isinstance(value, list):
        return [deadline for part in value for deadline in deadlines_in(part)]
    if not isinstance(value, dict):
        return []
    own = [value["options"].get("deadline")] if "options" in value and not value.get("subtask_type") else []
    return own + [deadline for part in value.values() for deadline in deadlines_in(part)]


def test_canvas_passes_its_deadline_to_all_tasks(app, published, task):
    render, other = task(), task("shop.other")
    deadline = in_time(60).isoformat()
    canvas = {
        "chain": chain(render.si(), group(render.si(), chain(render.si(), other.si())), other.si()),
        "group": group(render.si(), chain(render.si(), other.si())),
        "chord": chord([render.si(), render.si()], other.si()),
        "link": render.si().set(link=[other.si(), other.si()], link_error=other.si()),
    }
    for name, signature in canvas.items():
        for given in (deadline, 60):
            jobs = published.of(lambda signature=signature, given=given: signature.apply_async(deadline=given))
            assert jobs, name
            assert [words(job) for job in jobs] == [{"d": soon(60)}] * len(jobs), name
            inner = [found for job in jobs for found in deadlines_in(json.loads(message(job)["body"]))]
            assert inner or name == "group", name
            fixed = {*inner, *(message(job)["properties"][PROPERTY]["deadline"] for job in jobs)}
            assert len(fixed) == 1, name
            assert given == 60 or fixed == {deadline}
    own = chain(render.si(), other.si().set(deadline=5))
    (job,) = published.of(lambda: own.apply_async(deadline=deadline))
    assert deadlines_in(json.loads(message(job)["body"])) == [5], "a step's own deadline counts from its publish"
    (job,) = published.of(lambda: chain(render.si(), other.si()).set(deadline=deadline).apply_async())
    assert deadlines_in(json.loads(message(job)["body"])) == [deadline]


@pytest.fixture
def run_times(app, monkeypatch):
    """Return the commands that read run times. Tasks ``shop.s<number>`` take this number of seconds."""
    for seconds in (1, 2, 5, 10, 20):
        learned = RunTime()
        learned.add(None, seconds * 1_000_000)
        app.redis.hset(Keys().key("run_times"), f"shop.s{seconds}", learned.text)
    read, original = [], Reader.ask_one

    def ask_one(reader, name, *arguments):
        read.append((name, sorted(arguments[-1])))
        return original(reader, name, *arguments)

    monkeypatch.setattr(Reader, "ask_one", ask_one)
    return read


def test_steps_leave_time_for_later_steps(app, published, task, run_times):
    s1, s2, s5, s10, new = (task(f"shop.{name}").si for name in ("s1", "s2", "s5", "s10", "new"))
    deadline = datetime(2030, 1, 1, tzinfo=UTC)

    def left(signature, **options):
        """Return by task the seconds between its deadline and the deadline of the whole, in all messages."""
        run_times.clear()
        found = {}

        def collect(part):
            for member in part if isinstance(part, list) else part.values() if isinstance(part, dict) else ():
                collect(member)
            if isinstance(part, dict) and "options" in part and not part.get("subtask_type"):
                before = deadline - datetime.fromisoformat(part["options"]["deadline"])
                found.setdefault(part["task"][5:], set()).add(before.total_seconds())

        for job in published.of(lambda: signature.apply_async(deadline=deadline, **options)):
            before = deadline - datetime.fromisoformat(message(job)["properties"][PROPERTY]["deadline"])
            found.setdefault(job.task_name[5:], set()).add(before.total_seconds())
            collect(json.loads(message(job)["body"]))
        return found

    assert left(chain(s1(), s2(), s5())) == {"s1": {7}, "s2": {5}, "s5": {0}}
    assert run_times == [("hmget", ["shop.s2", "shop.s5"])], "one command"
    assert left(chain(s1(), group(s2(), s10()), s5())) == {"s1": {15}, "s2": {5}, "s10": {5}, "s5": {0}}
    assert left(chain(group(s2(), s10()), s5())) == {"s2": {5}, "s10": {5}, "s5": {0}}
    assert left(chord([s1(), chain(s2(), s10())], chain(s5(), s1()))) == {
        "s1": {0, 6},
        "s2": {16},
        "s10": {6},
        "s5": {1},
    }
    assert left(chain(s1(), new(), s5())) == {"s1": {5}, "new": {5}, "s5": {0}}, "an unknown time counts as 0"
    assert left(chain(s1(), chain(s2(), s5()), s5())) == {"s1": {12}, "s2": {10}, "s5": {0, 5}}
    own = (deadline - timedelta(seconds=50)).isoformat()
    assert left(chain(s1(), s2().set(deadline=own), s5())) == {"s1": {7}, "s2": {50}, "s5": {0}}
    assert left(group(s1(), s2())) == {"s1": {0}, "s2": {0}}
    assert run_times == [], "no step follows another"
    signature = chain(s1(), s2())
    published.of(signature.apply_async)
    assert run_times == []
    assert signature.tasks[0].options == {}, "the caller's signatures stay unchanged"
    app.redis.delete(Keys().key("run_times"))
    assert left(signature) == {"s1": {0}, "s2": {0}}
    app.redis.hset(Keys().key("run_times"), "shop.s2", "damaged")
    assert left(signature) == {"s1": {0}, "s2": {0}}


def test_canvas_is_published_although_run_times_cannot_be_read(app, published, task, monkeypatch):
    def no_right(reader, *command):
        raise redis.exceptions.NoPermissionError("no permission")

    monkeypatch.setattr(Reader, "ask_one", no_right)
    assert published.due(lambda: chain(task().si(), task().si()).apply_async(deadline=60)) == {"d": soon(60)}


def test_task_and_route_cannot_have_a_deadline(app, new_app, task):
    words = "deadline= is an option of calls and signatures, got: 60; a task can have start_within="
    with refused(f"task shop.render: {words}"):
        new_app().task(name="shop.render", deadline=60)(nothing)
    with refused("Affinity takes"):
        Affinity(deadline=60)
    routed = new_app(task_routes={"shop.render": {"deadline": 60}})
    with refused("task_routes 'shop.render': deadline= is an option of calls and signatures, got: 60; a route can"):
        check_app(routed)
    for value in (60, in_time(60), in_time(60).isoformat()):
        app.conf.task_routes = {"shop.render": {"deadline": value}}
        app.amqp.flush_routes()
        with refused("route of task shop.render: deadline= is an option of calls and signatures"):
            task().delay()
    assert task().apply_async(deadline=5)


def test_own_attribute_of_a_task_may_have_the_name_deadline(new_app):
    app = new_app()
    app.task(name="shop.render", shared=False, deadline="each friday")(nothing)
    assert list(app_complaints(app)) == []


def test_naive_deadline_is_refused(app, published, task):
    naive = datetime(2030, 1, 1)
    for publish in (
        lambda: task().apply_async(deadline=naive),
        lambda: task().s().set(deadline=naive),
        lambda: chain(task().si(), task().si()).apply_async(deadline=naive),
        lambda: publish_many(task(), [()], deadline=naive),
    ):
        with pytest.raises(OptionError, match="deadline must be an aware datetime"):
            publish()
    assert published.jobs == []


def test_beat_entry_has_a_deadline_in_seconds(app, published, task):
    task()
    for deadline in (in_time(60), in_time(60).isoformat()):
        options = {"deadline": deadline}
        app.conf.beat_schedule = {"nightly": {"task": "shop.render", "schedule": 1.0, "options": options}}
        entry = beat.ScheduleEntry("nightly", "shop.render", schedule=1.0, options=options, app=app)
        with pytest.raises(
            beat.SchedulingError, match="deadline of beat_schedule entry 'nightly' must be seconds from"
        ):
            beat.Scheduler(app, lazy=True).apply_async(entry, advance=False)
    app.conf.beat_schedule["nightly"]["options"] = {"deadline": 60}
    entry = beat.ScheduleEntry("nightly", "shop.render", schedule=1.0, options={"deadline": 60}, app=app)
    assert published.due(lambda: beat.Scheduler(app, lazy=True).apply_async(entry, advance=False)) == {"d": soon(60)}


def test_recurring_call_has_a_deadline_in_seconds(app, task):
    merged = task(affinity=Affinity("pdf", merge=Merge("{pages}", keep="last"), size="{pages}", start_within=9))
    with refused("deadline of recurring 'hh' must be seconds from the call, because it is made repeatedly, got: "):
        recurring.call_of_signature(app, "hh", merged.s(3).set(deadline=in_time(60)), stale_after=10)
    entry = recurring.call_of_signature(app, "hh", merged.s(3).set(deadline=60), stale_after=10)
    job = recurring.recurring_job(app, DueCall("hh", "17", entry.task, entry.signature))
    assert words(job) == {"w": 9, "d": soon(60), "s": 3}


def test_headline_is_an_option_of_its_own(app, published, task):
    assert published.due(lambda: task().apply_async(headline="news")) == {}
    for name in ("dedline", "deadlines", "start_witin"):
        with refused("call of task shop.render: unknown option"):
            task().apply_async(**{name: 5})


def test_stamp_may_have_the_name_deadline(app, published, task):
    signature = task().s()
    signature.stamp(deadline="friday")
    assert published.of(signature.apply_async)[0].stamps == ["deadline:friday"]
    assert published.jobs[0].due == ""
