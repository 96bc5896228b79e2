"""The dispatcher reports a merged run to the callers that its worker did not reach."""

import celery
import pytest
from billiard.exceptions import WorkerLostError
from celery import chord, states
from celery.app import backends
from celery.backends.redis import RedisBackend
from celery.exceptions import Reject

from celery_affinity import ResultLostError
from celery_affinity.results import chords
from celery_affinity.results.merged import (
    LOST_AFTER_S,
    BatchRun,
    StoredFailure,
    StoredSuccess,
    deliver_later,
    deliver_merged_result,
)
from celery_affinity.results.reporter import ResultReporter
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys

from ..support.scripted_fleet import ScriptedFleet

APP = "tests.support.apps.merging"

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's backend uses it


@pytest.fixture
def app(request, load_app, valkey, redis_client, monkeypatch):
    """The app, with the result backend that a test names."""
    app = load_app(APP)
    if hasattr(request, "param"):
        backend, url = backends.by_url(request.param, app.loader)
        monkeypatch.setattr(app._local, "backend", backend(app=app, url=url), raising=False)
    return app


@pytest.fixture
def fleet(app, redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("worker", "merging")
    fleet.publish("busy", "merging")
    return fleet


@pytest.fixture
def reporter(app, monkeypatch):
    unpatched = RedisBackend.on_chord_part_return
    monkeypatch.setattr(RedisBackend, "on_chord_part_return", unpatched)  # restores it after the test
    chords.install_chord_parts()
    return ResultReporter(app, "", lambda: None)


def claim(fleet):
    """Let the worker claim the waiting job; return the claim."""
    (claim,) = fleet.end("worker", *fleet.inbox("worker"))
    return claim


def run(fleet, outcome="acked"):
    """Let the worker run the waiting job without reporting; return the unreported end."""
    fleet.end("worker", claim(fleet), outcome=outcome)
    return fleet.scheduler.next_report("an app", again_s=0.0)


def lose(fleet):
    """Let the worker ack the waiting job and die; return the unreported end."""
    fleet.ack("worker", claim(fleet))
    fleet.scheduler.recover("worker")
    return fleet.scheduler.next_report("an app", again_s=0.0)


def callers_of(fleet, batch):
    return fleet.scheduler.batch_calls(batch.job_id, fence=batch.fence).callers


def deliver(reporter, fleet, batch, end, **options):
    """Report the end of the run of *batch* to its callers."""
    run = BatchRun(batch.job_id, "last", batch.fence)
    deliver_merged_result(reporter, run, end, scheduler=fleet.scheduler, **options)


def ack(fleet, batch):
    """Let the worker ack *batch*; return the unreported end."""
    fleet.end("worker", batch, outcome="acked")
    return fleet.scheduler.next_report("an app", again_s=0.0)


def call_chord(app, calls=3):
    return chord([app.tasks["last"].s("HH", n) for n in range(calls)], app.tasks["total"].s())()


def mark_unreported(fleet, batch, callers):
    """Make *callers* unreported again, in this order, as if the process had died before it acked their reports."""
    client = fleet.scheduler.client
    client.zadd(Keys().key("callers", batch.job_id), {caller.job_id: 5 + nth for nth, caller in enumerate(callers)})
    for caller in callers:
        client.hset(Keys().key("job", caller.job_id), mapping={"state": "merged", "into": batch.job_id})
        client.set(Keys().key("message", caller.job_id), caller.message)


def count(app, reporter, whole, batch):
    """Store the result of the batch's primary, a part of the chord *whole*."""
    first = whole.parent.results[0]
    app.backend.mark_as_done(first.id, 7, reporter.request_of("last", first.id, batch.message)._context)


def test_all_callers_get_the_result_in_the_backend(app, fleet, reporter):
    first, *others = [app.tasks["last"].delay("HH", n) for n in range(3)]
    ending = run(fleet)
    assert (ending.how, ending.task_id) == ("shared", first.id)
    assert not deliver_later(reporter, fleet.scheduler, ending), "the backend has no result yet"
    app.backend.store_result(first.id, 7, states.SUCCESS)
    assert deliver_later(reporter, fleet.scheduler, ending)
    assert [each.get(timeout=5) for each in others] == [7, 7]
    assert fleet.scheduler.next_report("an app", again_s=0.0) is None
    assert not fleet.scheduler.reader.has_unreported_ends()


def test_result_missing_from_the_backend_is_lost(app, fleet, reporter):
    _, *others = [app.tasks["last"].delay("HH", n) for n in range(3)]
    ending = run(fleet)
    assert not deliver_later(reporter, fleet.scheduler, ending._replace(since_s=LOST_AFTER_S - 1))
    assert deliver_later(reporter, fleet.scheduler, ending._replace(since_s=LOST_AFTER_S))
    for each in others:
        with pytest.raises(ResultLostError, match="its result is lost"):
            each.get(timeout=5)


@pytest.mark.parametrize(
    ("outcome", "is_stored", "error", "message"),
    [
        ("rejected ValueError: no such city", True, ValueError, "^no such city$"),
        ("rejected ValueError: no such city", False, Reject, "rejected"),
        ("failed ValueError: no such city", True, ValueError, "^no such city$"),
        ("failed ValueError: no such city", False, ResultLostError, "failed: ValueError: no such city"),
        ("failed", False, ResultLostError, "failed: its worker did not say why"),
    ],
)
def test_callers_of_a_dead_run_get_its_error(app, fleet, reporter, outcome, is_stored, error, message):
    fleet.scheduler.configure({"keep_failed": "1"})
    fleet.join("worker", "merging")  # receives the setting
    first, *others = [app.tasks["last"].delay("HH", n) for n in range(3)]
    ending = run(fleet, outcome)
    assert (ending.how, ending.task_id) == (outcome.split()[0], first.id)
    if is_stored:
        app.backend.mark_as_failure(first.id, ValueError("no such city"))
    assert deliver_later(reporter, fleet.scheduler, ending)
    for each in others:
        with pytest.raises(error, match=message):
            each.get(timeout=5)
    assert fleet.state(ending.job_id) == "dead"


@pytest.mark.parametrize(
    "end", [StoredSuccess(lambda _: 7), StoredFailure(KeyError("later"))], ids=["succeeds", "fails"]
)
def test_failed_caller_gets_a_later_runs_result_if_it_succeeds(app, fleet, reporter, end):
    first, other = [app.tasks["last"].delay("HH", n) for n in range(2)]
    batch = claim(fleet)
    app.backend.mark_as_failure(other.id, ValueError("earlier"))
    deliver(reporter, fleet, batch, end)
    if isinstance(end, StoredSuccess):
        assert other.get(timeout=5) == 7
    else:
        with pytest.raises(ValueError, match="earlier"):
            other.get(timeout=5)
    assert first.state == states.PENDING


@pytest.mark.parametrize("has_succeeded", [True, False])
def test_all_callers_get_the_stored_result_when_worker_dies(app, fleet, reporter, has_succeeded):
    first, *others = [app.tasks["last"].delay("HH", n) for n in range(3)]
    ending = lose(fleet)
    assert (ending.how, ending.task_id) == ("lost", first.id)
    if has_succeeded:
        app.backend.store_result(first.id, 7, states.SUCCESS)
    assert deliver_later(reporter, fleet.scheduler, ending)
    for each in [first, *others]:
        if has_succeeded:
            assert each.get(timeout=5) == 7
        else:
            with pytest.raises(WorkerLostError, match="had been acknowledged"):
                each.get(timeout=5)


@pytest.mark.parametrize("end", [run, lose])
def test_other_calls_run_again_when_their_run_is_revoked(app, fleet, reporter, end):
    first, other, revoked = [app.tasks["last"].delay("HH", n) for n in range(3)]
    ending = end(fleet)
    for each in (first, revoked):
        app.backend.mark_as_revoked(each.id)
    assert deliver_later(reporter, fleet.scheduler, ending)
    fleet.join("another", "merging")
    (again,) = fleet.inbox("worker") + fleet.inbox("another")
    request = reporter.request_of("last", other.id, again.message)
    assert (request.id, request.args, request.kwargs) == (other.id, ["HH", 1], {})
    assert [each.state for each in (first, other, revoked)] == ["REVOKED", "PENDING", "REVOKED"]
    assert fleet.scheduler.next_report("an app", again_s=0.0) is None


def test_call_with_unreadable_message_fails_instead_of_rerunning(app, fleet, reporter):
    first, other = [app.tasks["last"].delay("HH", n) for n in range(2)]
    ending = run(fleet)
    app.backend.mark_as_revoked(first.id)
    (message,) = fleet.scheduler.client.keys(Keys().key("message", "*"))
    fleet.scheduler.client.set(message, "no message")
    assert deliver_later(reporter, fleet.scheduler, ending)
    with pytest.raises(ValueError, match="the message of this call cannot be read"):
        other.get(timeout=5)


def test_run_delivered_too_often_is_not_run_again(app, fleet, reporter):
    first, other = [app.tasks["last"].delay("HH", n) for n in range(2)]
    ending = lose(fleet)._replace(how="max_deliveries", deliveries=5)
    app.backend.mark_as_revoked(first.id)
    assert deliver_later(reporter, fleet.scheduler, ending)
    with pytest.raises(WorkerLostError, match="Given up after 5 deliveries"):
        other.get(timeout=5)


def test_result_of_several_parts_is_lost_with_its_worker(app, fleet, reporter):
    first, other = [app.tasks["every"].delay(n) for n in range(2)]
    ending = run(fleet)
    app.backend.store_result(first.id, 0, states.SUCCESS)
    assert deliver_later(reporter, fleet.scheduler, ending)
    with pytest.raises(ResultLostError, match="part of the result is lost"):
        other.get(timeout=5)


def test_report_waits_for_a_run_that_continues_elsewhere(app, fleet, reporter):
    first, _ = [app.tasks["last"].delay("HH", n) for n in range(2)]
    ending = run(fleet)._replace(since_s=LOST_AFTER_S)
    fleet.publish("retry", "other", task_id=first.id, delay_s=60)
    assert not deliver_later(reporter, fleet.scheduler, ending)


def test_caller_is_not_reported_twice(app, fleet, reporter):
    whole = call_chord(app)
    batch = claim(fleet)
    page = callers_of(fleet, batch)
    deliver(reporter, fleet, batch, StoredSuccess(lambda _: 1), is_repeated=False)
    mark_unreported(fleet, batch, page)
    deliver(reporter, fleet, batch, StoredSuccess(lambda _: 2))
    assert [app.AsyncResult(caller.task_id).get(timeout=5) for caller in page] == [1, 1]
    assert fleet.scheduler.reader.pending("merging") == 0, "two of three parts are counted, not four"
    assert whole.state == states.PENDING


def test_result_stored_before_a_crash_is_counted_in_its_chord(app, fleet, reporter):
    whole = call_chord(app)
    _, reported, other = whole.parent.results
    batch = claim(fleet)
    count(app, reporter, whole, batch)
    app.backend.store_result(reported.id, 7, states.SUCCESS)  # but not the chord part
    assert deliver_later(reporter, fleet.scheduler, ack(fleet, batch))
    assert other.get(timeout=5) == 7
    assert all(fleet.scheduler.reader.jobs_of([whole.id])), "the body is published"


def test_report_waits_while_a_process_claims_the_chord(app, fleet, reporter):
    whole = call_chord(app)
    if celery.VERSION[:2] < (5, 7):
        pytest.skip("this Celery claims no chords")
    batch = claim(fleet)
    count(app, reporter, whole, batch)
    for each in whole.parent.results[1:]:
        app.backend.store_result(each.id, 7, states.SUCCESS)  # but not the chord part
    claimed = app.backend.get_key_for_group(whole.parent.id, ".c")
    app.backend.client.set(claimed, "the token of a process that died")
    ending = ack(fleet, batch)
    assert not deliver_later(reporter, fleet.scheduler, ending)
    app.backend.client.delete(claimed)
    assert not any(fleet.scheduler.reader.jobs_of([whole.id]))
    assert deliver_later(reporter, fleet.scheduler, ending)
    assert all(fleet.scheduler.reader.jobs_of([whole.id])), "the body is published"


def test_chord_body_is_published_once_for_any_last_part(app, fleet, reporter, monkeypatch):
    whole, results = call_chord(app), app.backend.client
    batch = claim(fleet)
    count(app, reporter, whole, batch)
    page = callers_of(fleet, batch)
    kept = {key: results.dump(key) for key in results.keys("celery-taskset-meta-*")}
    with monkeypatch.context() as dying:
        dying.setattr(results, "delete", lambda *_: None)
        deliver(reporter, fleet, batch, StoredSuccess(lambda _: 7), is_repeated=False)
    body = f"celery-taskset-meta-{whole.parent.id}.body".encode()
    for key in set(results.keys("celery-taskset-meta-*")) - {body}:
        results.delete(key)
    for key, value in kept.items():
        results.restore(key, 0, value)  # as if the process had died before the backend forgot the chord
    mark_unreported(fleet, batch, page[::-1])
    deliver(reporter, fleet, batch, StoredSuccess(lambda _: 7))
    assert [len(jobs) for jobs in fleet.scheduler.reader.jobs_of([whole.id])] == [1]


@pytest.mark.parametrize("app", ["cache+memory://"], indirect=True)
def test_counting_backend_counts_no_chord_part_twice(app, fleet, reporter):
    whole = call_chord(app, 4)
    batch = claim(fleet)
    counted = app.backend.get_key_for_chord(whole.parent.id)
    page = callers_of(fleet, batch)
    for _ in range(2):
        deliver(reporter, fleet, batch, StoredSuccess(lambda _: 7))
        assert int(app.backend.get(counted)) == 3
        mark_unreported(fleet, batch, page)


def test_unreadable_message_fails_only_its_own_call(app, fleet, reporter):
    first, other, last = [app.tasks["last"].delay("HH", n) for n in range(3)]
    batch = claim(fleet)
    (unreadable, _) = callers_of(fleet, batch)
    fleet.scheduler.client.set(Keys().key("message", unreadable.job_id), "no message")
    deliver(reporter, fleet, batch, StoredSuccess(lambda _: 1))
    assert last.get(timeout=5) == 1
    with pytest.raises(ValueError, match="the message of this call cannot be read"):
        other.get(timeout=5)
    assert first.state == states.PENDING


def test_process_without_the_claim_reports_no_result(app, fleet, reporter):
    results = [app.tasks["last"].delay("HH", n) for n in range(2)]
    deliver(reporter, fleet, claim(fleet)._replace(fence="999"), StoredFailure(ValueError("stale")))
    assert {each.state for each in results} == {states.PENDING}
