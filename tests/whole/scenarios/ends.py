"""Ends of tasks and their results."""

import uuid
from datetime import UTC, datetime, timedelta

from ...support import since
from ...support.processes import wait_until
from . import scenario
from .side import REPLY


@scenario
def retries(side):
    tasks = side.tasks()
    key = "retries"
    ends = [
        side.outcome(tasks.third_time_lucky.delay()),
        side.failure(tasks.never_lucky.delay(key)),
        side.outcome(tasks.retry_elsewhere.delay()),
    ]
    return ends, side.records(key, 3)


@scenario
def failing_task(side):
    result = side.tasks().fail.delay("for good")
    end = side.outcome(result)
    return end, "ValueError: for good" in result.traceback, result.info.args, result.failed(), result.name


@scenario(stock_fails="" if since.EXIT_FAILS else "Celery can store a SystemExit of billiard 4.3 since 5.7")
def errors_of_results(side):
    tasks = side.tasks()
    return [
        side.failure(tasks.unreadable.delay()),
        side.failure(side.app.send_task("parity.add", (1,))),
        side.failure(tasks.exits.delay()),
    ]


@scenario
def expiry_before_publish(side):
    add = side.tasks().add
    return [
        side.failure(add.apply_async((1, 1), expires=-1)),
        side.failure(add.apply_async((1, 1), expires=datetime.now(UTC) - timedelta(seconds=1))),
        side.outcome(add.apply_async((1, 1), expires=60)),
        side.outcome(add.apply_async((1, 1), expires=datetime.now(UTC) + timedelta(seconds=60), countdown=0.2)),
    ]


@scenario
def eta(side):
    tasks = side.tasks()
    key = "eta"
    due = datetime.now(UTC) + timedelta(seconds=0.6)
    result = tasks.note.apply_async((key, "ran"), eta=due)
    naive = tasks.note.apply_async((key, "naive"), eta=(datetime.now(UTC) - timedelta(seconds=1)).replace(tzinfo=None))
    side.outcome(naive)
    early = side.outcome(result) and datetime.now(UTC) < due
    return early, sorted(side.records(key, 2))


@scenario
def revoke_before_eta(side):
    tasks = side.tasks()
    key = "revoked"
    result = tasks.note.apply_async((key, "ran"), countdown=1)
    side.app.control.revoke(result.id, **REPLY)
    several = [tasks.note.apply_async((key, "ran"), countdown=1) for _ in range(2)]
    side.app.control.revoke([each.id for each in several], **REPLY)
    return [side.failure(each) for each in (result, *several)], side.current_records(key)


@scenario
def revoke_with_terminate(side):
    tasks = side.tasks()
    key = "terminated"
    results = [tasks.hold.delay(key), tasks.hold.delay(key)]
    side.records(f"{key}:started", 2)
    results[0].revoke(terminate=True)
    results[1].revoke(terminate=True, signal="SIGKILL")
    ends = [side.failure(each) for each in results]
    return ends, side.current_records(f"{key}:ended"), side.outcome(tasks.add.delay(1, 1))


@scenario
def revoke_without_terminate(side):
    tasks = side.tasks()
    key = "spared"
    result = tasks.hold.delay(key)
    side.records(f"{key}:started", 1)
    side.app.control.revoke(result.id, **REPLY)
    side.release(key)
    # Celery 5.6 stores REVOKED immediately, on stock as well; the end of the task replaces it.
    wait_until(lambda: side.app.backend.get_state(result.id) == "SUCCESS", 20, "the task completes")
    return side.outcome(side.result(result.id))


@scenario
def revoke_by_stamp(side):
    tasks = side.tasks()
    key = "stamped"
    signature = tasks.hold.s(key)
    signature.stamp(batch=key)
    result = signature.apply_async()
    side.records(f"{key}:started", 1)
    side.app.control.revoke_by_stamped_headers({"batch": [key]}, terminate=True)
    end = side.failure(result)
    later = tasks.add.s(1, 1)
    later.stamp(batch=key)
    return end, side.failure(later.apply_async())


@scenario
def time_limits(side):
    tasks = side.tasks()
    results = [
        tasks.too_long.delay(),
        tasks.too_long_softly.delay(False),
        tasks.too_long_softly.delay(True),
        tasks.hold.apply_async(("limit",), time_limit=1),
        tasks.hold.apply_async(("limit",), soft_time_limit=1),
    ]
    return [side.outcome(each) for each in results]


@scenario
def ignored_and_rejected(side):
    tasks = side.tasks()
    ignored, dropped, again = "ignored", "dropped", "again"
    first = tasks.ignored.delay(ignored)
    second = tasks.rejected.delay(dropped, False)
    third = tasks.rejected.delay(again, True)
    seen = side.records(ignored, 1), side.records(dropped, 1), side.records(again, 2)
    rejects = side.failure(second) if since.REJECTED_FAILS else second.state
    return seen, side.outcome(third), first.state, rejects


@scenario
def lost_pool_process(side):
    tasks = side.tasks()
    lost, lost_once = tasks.lost.delay(), tasks.lost_once.delay("lost")
    return side.failure(lost), side.outcome(lost_once), side.records("lost", 2)


@scenario
def unacked_failure(side):
    key = "unacked"
    end = side.outcome(side.tasks().fail_unacked.delay(key))
    return end, side.outcome(side.tasks().add.delay(1, 1)), side.current_records(key)


@scenario
def results(side):
    tasks = side.tasks()
    mine = str(uuid.uuid4())
    kept = tasks.add.apply_async((1, 1), task_id=mine)
    end = side.outcome(kept)
    key = "quiet"
    quiet = tasks.quiet.delay(key)
    silent = tasks.add.apply_async((1, 1), ignore_result=True)
    side.records(key, 1)
    facts = [kept.id == mine, kept.name, kept.args, kept.kwargs, kept.retries, kept.queue, kept.successful()]
    kept.forget()
    return end, facts, kept.state, quiet.state, quiet.get(timeout=5), silent.get(timeout=5)


@scenario
def progress(side):
    key = "progress"
    result = side.tasks().progress.delay(key)
    wait_until(lambda: result.state == "PROGRESS", 20, "it reports progress")
    info = result.info
    side.release(key)
    return info, side.outcome(result)


@scenario
def running_task_has_state_started(side):
    key = "started"
    result = side.tasks().hold.delay(key)
    side.records(f"{key}:started", 1)
    wait_until(lambda: result.state == "STARTED", 20, "it is reported as running")
    facts = sorted(result.info)
    side.release(key)
    return facts, side.outcome(result)


@scenario
def eager(side):
    app = side.new_app(task_always_eager=True, task_eager_propagates=True)
    tasks = side.tasks(app)
    result = tasks.add.delay(1, 2)
    try:
        tasks.fail.delay("eager")
    except ValueError as exc:
        raised = str(exc)
    applied = side.tasks().add.apply((3, 4))
    return result.state, side.outcome(result), raised, side.outcome(applied), side.size("celery")
