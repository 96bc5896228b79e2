"""Ends of tasks, and questions to their results."""

import uuid
from datetime import UTC, datetime, timedelta

from ...support import since
from ...support.processes import wait_until
from . import scenario

_PENDING_IS_NOT_ANNOUNCED = "what is revoked or expires while it waits is announced when a worker gets it, not before"


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
def a_task_that_fails(side):
    result = side.tasks().fail.delay("for good")
    end = side.outcome(result)
    return end, "ValueError: for good" in result.traceback, result.info.args, result.failed(), result.name


@scenario(stock_fails="" if since.EXIT_FAILS else "Celery can store a SystemExit of billiard 4.3 since 5.7")
def errors_around_a_result(side):
    tasks = side.tasks()
    return [
        side.failure(tasks.unreadable.delay()),
        side.failure(side.app.send_task("parity.add", (1,))),
        side.failure(tasks.exits.delay()),
    ]


@scenario
def expiry_before_it_is_published(side):
    add = side.tasks().add
    return [
        side.failure(add.apply_async((1, 1), expires=-1)),
        side.failure(add.apply_async((1, 1), expires=datetime.now(UTC) - timedelta(seconds=1))),
        side.outcome(add.apply_async((1, 1), expires=60)),
        side.outcome(add.apply_async((1, 1), expires=datetime.now(UTC) + timedelta(seconds=60), countdown=0.2)),
    ]


@scenario
def a_time_to_run_at(side):
    tasks = side.tasks()
    key = "eta"
    due = datetime.now(UTC) + timedelta(seconds=0.6)
    result = tasks.note.apply_async((key, "ran"), eta=due)
    naive = tasks.note.apply_async((key, "naive"), eta=(datetime.now(UTC) - timedelta(seconds=1)).replace(tzinfo=None))
    side.outcome(naive)
    early = side.outcome(result) and datetime.now(UTC) < due
    return early, sorted(side.records(key, 2))


@scenario
def revoked_before_its_time(side):
    tasks = side.tasks()
    key = "revoked"
    result = tasks.note.apply_async((key, "ran"), countdown=1)
    side.app.control.revoke(result.id, reply=True, timeout=10, limit=1)
    several = [tasks.note.apply_async((key, "ran"), countdown=1) for _ in range(2)]
    side.app.control.revoke([each.id for each in several], reply=True, timeout=10, limit=1)
    return [side.failure(each) for each in (result, *several)], side.so_far(key)


@scenario
def revoked_while_it_runs(side):
    tasks = side.tasks()
    key = "terminated"
    results = [tasks.hold.delay(key), tasks.hold.delay(key)]
    side.records(f"{key}:started", 2)
    results[0].revoke(terminate=True)
    results[1].revoke(terminate=True, signal="SIGKILL")
    ends = [side.failure(each) for each in results]
    return ends, side.so_far(f"{key}:ended"), side.outcome(tasks.add.delay(1, 1))


@scenario
def revoked_without_terminating_what_runs(side):
    tasks = side.tasks()
    key = "spared"
    result = tasks.hold.delay(key)
    side.records(f"{key}:started", 1)
    side.app.control.revoke(result.id, reply=True, timeout=10, limit=1)
    side.let_go(key)
    # Celery 5.6 stores REVOKED at once, on stock as well; the task stores its end over that.
    wait_until(lambda: side.app.backend.get_state(result.id) == "SUCCESS", 20, "the task runs to its end")
    return side.outcome(side.result(result.id))


@scenario
def revoked_by_a_stamp(side):
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
def a_process_that_is_lost(side):
    tasks = side.tasks()
    lost, lost_once = tasks.lost.delay(), tasks.lost_once.delay("lost")
    return side.failure(lost), side.outcome(lost_once), side.records("lost", 2)


@scenario
def a_failure_that_is_not_acked(side):
    key = "unacked"
    end = side.outcome(side.tasks().fail_unacked.delay(key))
    return end, side.outcome(side.tasks().add.delay(1, 1)), side.so_far(key)


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
    wait_until(lambda: result.state == "PROGRESS", 20, "it makes progress")
    info = result.info
    side.let_go(key)
    return info, side.outcome(result)


@scenario
def a_running_task_is_started(side):
    key = "started"
    result = side.tasks().hold.delay(key)
    side.records(f"{key}:started", 1)
    wait_until(lambda: result.state == "STARTED", 20, "it is seen running")
    facts = sorted(result.info)
    side.let_go(key)
    return facts, side.outcome(result)


@scenario
def eager(side):
    app = side.new_app(task_always_eager=True, task_eager_propagates=True)
    tasks = side.tasks(app)
    result = tasks.add.delay(1, 2)
    try:
        tasks.fail.delay("at once")
    except ValueError as exc:
        raised = str(exc)
    applied = side.tasks().add.apply((3, 4))
    return result.state, side.outcome(result), raised, side.outcome(applied), side.size("celery")
