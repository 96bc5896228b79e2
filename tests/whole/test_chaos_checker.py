"""The checker of the chaos suite finds every kind of violation in synthetic histories."""

from itertools import count

import pytest

from .chaos.campaign import until_quiet
from .chaos.ledger import Event
from .chaos.synthetic import CHILD, OTHER, WORKER, SyntheticHistory


@pytest.fixture
def history():
    return SyntheticHistory()


def test_completed_job_has_no_violation(history):
    history.publish("job")
    history.run("job", 1, 2)
    verdict = history.checked(states={"job": "done"})
    assert (verdict.accepted, verdict.runs, verdict.violations) == (1, 1, [])


def test_accepted_job_must_have_ended_in_a_quiet_fleet(history):
    history.publish("job")
    assert "neither ended nor pending" in history.checked().violations[0]
    assert "still waiting" in history.checked(states={"job": "pending"}).violations[0]


def test_unconfirmed_job_may_exist_or_be_missing(history):
    history.publish("in", accepted=False)
    history.run("in", 1, 2)
    history.publish("out", accepted=False)
    assert history.checked(states={"in": "done"}).violations == []


@pytest.mark.parametrize(
    ("killed", "at", "is_fine"),
    [(WORKER, 1.5, True), (CHILD, 1.5, True), (WORKER, 2.1, True), (WORKER, 9, False), (OTHER, 1.5, False)],
)
def test_second_run_needs_death_of_the_first_runs_process(history, killed, at, is_fine):
    history.publish("job")
    history.run("job", 1, 2)
    history.happen("kill", "worker", at, target=killed)
    history.run("job", 7, 8, worker=OTHER, pid=OTHER)
    assert (history.checked(states={"job": "done"}).violations == []) is is_fine


@pytest.mark.parametrize(("seconds", "is_fine"), [(6, True), (1, False)])
def test_second_run_needs_a_pause_longer_than_the_timeout(history, seconds, is_fine):
    history.publish("job")
    history.run("job", 1, 9)
    history.happen("stop", "pdf", 2, target=WORKER)
    history.happen("resume", "pdf", 2 + seconds, target=WORKER)
    history.run("job", 7.5, 8, worker=OTHER, pid=OTHER)
    assert (history.checked(states={"job": "done"}).violations == []) is is_fine


@pytest.mark.parametrize(("seconds", "is_fine"), [(6, True), (1, False)])
def test_task_is_interrupted_only_on_a_fenced_worker(history, seconds, is_fine):
    history.publish("job")
    history.run("job", 1, 9, outcome="SystemExit")
    history.happen("stop", "pdf", 2, target=WORKER)
    history.happen("resume", "pdf", 2 + seconds, target=WORKER)
    history.run("job", 7.5, 8, worker=OTHER, pid=OTHER)
    violations = history.checked(states={"job": "done"}).violations
    assert any("a task ended in" in each for each in violations) is not is_fine


@pytest.mark.parametrize(("start", "is_fine"), [(9.01, True), (9.5, False)])
def test_resumed_worker_starts_only_jobs_in_its_pipe(history, start, is_fine):
    history.publish("job")
    history.happen("stop", "pdf", 2, target=WORKER)
    history.run("job", 7.5, 7.6, worker=OTHER, pid=OTHER)
    history.happen("resume", "pdf", 9, target=WORKER)
    history.run("job", start, start + 0.01)
    assert (history.checked(states={"job": "done"}).violations == []) is is_fine


@pytest.mark.parametrize(("forgets_s", "is_fine"), [(1, True), (0, False)])
def test_only_unsaved_writes_are_lost_after_power_loss(history, forgets_s, is_fine):
    history.publish("gone", at=9.5)
    history.publish("again", at=1)
    history.run("again", 9.2, 9.4)
    history.happen("down", "server", 10, how="power lost", forgets_s=forgets_s)
    history.happen("up", "server", 11)
    history.run("again", 12, 13)
    verdict = history.checked(states={"again": "done"})
    assert (verdict.violations == []) is is_fine
    assert len(verdict.violations) in (0, 2)


@pytest.mark.parametrize(
    ("name", "how", "forgets_s", "at"), [("server", "power lost", 1, 1), ("results", "emptied", 1e9, 9.5)]
)
def test_loss_of_other_data_does_not_explain_a_lost_job(history, name, how, forgets_s, at):
    history.publish("job", at=at)
    history.happen("down", name, 10, how=how, forgets_s=forgets_s)
    history.happen("up", name, 11)
    assert "neither ended nor pending" in history.checked().violations[0]


def test_lost_early_acked_job_needs_its_process_death(history):
    history.publish("job")
    history.run("job", 1)
    assert history.checked(states={"job": "dead"}, reasons={"job": "lost"}).violations
    history.happen("kill", "worker", 1.5, target=WORKER)
    assert history.checked(states={"job": "dead"}, reasons={"job": "lost"}).violations == []


@pytest.mark.parametrize(("result", "is_fine"), [("SUCCESS", True), ("FAILURE", False), (None, False)])
def test_ended_job_must_have_the_result_of_its_end(history, result, is_fine):
    history.publish("job")
    history.run("job", 1, 2)
    verdict = history.checked(states={"job": "done"}, results={"task-job": result} if result else {})
    assert (verdict.violations == []) is is_fine
    assert is_fine or "its result should be SUCCESS" in verdict.violations[0]


@pytest.mark.parametrize(("start", "is_fine"), [(2.1, True), (9, False)])
def test_retry_state_may_arrive_after_the_next_attempts_end(history, start, is_fine):
    for job in ("first", "second"):
        history.publish(job, task="task")
    history.run("first", 1, 2, outcome="retried")
    history.run("second", start, start + 0.1, worker=OTHER, pid=OTHER)
    verdict = history.checked(states={"first": "done", "second": "done"}, results={"task": "RETRY"})
    assert (verdict.violations == []) is is_fine


@pytest.mark.parametrize(
    ("killed", "end", "state", "is_fine"),
    [
        (CHILD, 5, "done", True),
        (CHILD, 20, "done", False),  # the worker saw no SUCCESS and had no reason to ack
        (CHILD, 5, None, False),
        (WORKER, 5, "done", False),  # the worker could not ack
        (OTHER, 5, "done", False),
    ],
)
def test_killed_attempt_is_done_when_its_retry_has_succeeded(history, killed, end, state, is_fine):
    for job in ("first", "second"):
        history.publish(job, task="task")
    history.run("first", 1)
    history.happen("kill", "a process", 1.5, target=killed)
    history.run("second", end - 1, end, worker=300, pid=300)
    verdict = history.checked(states={"second": "done", **({"first": state} if state else {})})
    assert verdict.lost == ({"its retry had succeeded": 1} if is_fine else {})
    assert (verdict.violations == []) is is_fine


def cut(history):
    history.happen("cut", "*", 1)


def lose_results_server(history):
    history.happen("down", "results", 1, how="killed", forgets_s=0)
    history.happen("up", "results", 3)


def block(history):
    history.happen("block", "pdf", 1, target=WORKER)


@pytest.mark.parametrize(
    ("fault", "retries", "state", "is_fine"),
    [
        (cut, False, "SUCCESS", True),
        (lose_results_server, False, "SUCCESS", True),
        (block, False, "SUCCESS", True),
        (cut, True, "SUCCESS", False),
        (cut, False, "RETRY", False),
        (cut, False, None, False),
        (lambda _: None, False, "SUCCESS", False),
    ],
    ids=["cut", "no-server", "blocked", "retries", "another-state", "not-written", "no-fault"],
)
@pytest.mark.parametrize("got", ["FAILURE", None])
def test_unstored_result_may_be_lost_unless_the_worker_retries(history, fault, retries, state, is_fine, got):
    history.happen("born", "pdf", 0, target=WORKER, retries_results=retries)
    history.publish("job")
    history.run("job", 1, 2)
    fault(history)
    if state:
        history.happen("unstored", "task-job", 40, worker=WORKER, state=state, error="ConnectionError")
    if got:
        history.happen("got", "task-job", 50, state=got)
    found = history.checked(states={"job": "done"}, results={"task-job": got} if got else {}).violations
    assert (found == []) is is_fine
    assert all("its result should be SUCCESS" in each for each in found)


@pytest.mark.parametrize("is_noted", [True, False])
def test_expired_job_may_lack_revoked_state_when_unstored(history, is_noted):
    history.happen("born", "pdf", 0, target=WORKER, retries_results=False)
    cut(history)
    history.publish("job", at=2.5, expires=5)
    if is_noted:
        history.happen("unstored", "task-job", 5.5, worker=WORKER, state="REVOKED", error="ConnectionError")
    is_expired = {"states": {"job": "expired"}, "expired": {"job": 5.0}, "results": {}}
    assert (history.checked(**is_expired).violations == []) is is_noted


@pytest.mark.parametrize(("forgets_s", "is_fine"), [(1e9, True), (0, False)])
def test_results_are_lost_only_by_an_emptied_results_server(history, forgets_s, is_fine):
    history.publish("job")
    history.run("job", 1, 2)
    history.happen("down", "results", 10, how="killed", forgets_s=forgets_s)
    history.happen("up", "results", 11)
    verdict = history.checked(states={"job": "done"}, results={})
    assert (verdict.violations == []) is is_fine


def test_waiting_caller_must_get_the_result(history):
    history.publish("job")
    history.run("job", 1, 2)
    history.happen("waited", "task-job", 20, asked=10, error="TimeoutError")
    assert "its caller got no result" in history.checked(states={"job": "done"}).violations[0]
    history.happen("got", "task-job", 20, state="FAILURE")
    assert "its caller got FAILURE" in history.checked(states={"job": "done"}).violations[0]


def test_expired_job_must_be_revoked_and_not_run(history):
    history.publish("job", expires=5)
    is_expired = {"states": {"job": "expired"}, "expired": {"job": 5.0}, "results": {"task-job": "REVOKED"}}
    verdict = history.checked(**is_expired)
    assert (verdict.violations, verdict.lost) == ([], {"expired": 1})
    assert "its result should be REVOKED" in history.checked(**{**is_expired, "results": {}}).violations[0]
    assert "expired before its time" in history.checked(**{**is_expired, "expired": {"job": 4.0}}).violations[0]
    history.run("job", 1, 2)
    assert "ran to its end, and is revoked" in history.checked(**is_expired).violations[0]


def test_job_without_expiry_must_not_expire(history):
    history.publish("job")
    is_expired = {"states": {"job": "expired"}, "expired": {"job": 5.0}, "results": {"task-job": "REVOKED"}}
    assert "expired before its time" in history.checked(**is_expired).violations[0]


@pytest.mark.parametrize(("outcome", "is_fine"), [("OperationalError", True), ("done", False)])
def test_full_server_explains_only_reruns_of_failures(history, outcome, is_fine):
    history.happen("full", "server", 0, pending=0, began=0)
    history.publish("job")
    history.run("job", 1, 2, outcome=outcome)
    history.run("job", 3, 4)
    history.happen("relief", "server", 5, pending=0, silent_s=0.5)
    again = [each for each in history.checked(states={"job": "done"}).violations if "ran again" in each]
    assert (again == []) is is_fine


def test_job_expired_on_its_worker_does_not_run(history):
    history.publish("job", expires=5)
    assert history.checked(states={"job": "done"}, results={"task-job": "REVOKED"}).lost == {"expired": 1}


def test_job_must_not_start_before_its_eta(history):
    history.publish("job", due=5)
    history.run("job", 4.5, 6)
    assert "before its time" in history.checked().violations[0]


@pytest.mark.parametrize("cut", [True, False])
def test_task_with_refused_retry_reruns_only_with_a_cause(history, cut):
    history.publish("job")
    if cut:
        history.happen("cut", "all", 1)
    history.run("job", 1.1, 1.2, outcome="OperationalError")
    history.run("job", 3, 4)
    verdict = history.checked()
    assert verdict.again == {"its retry could not be published": 1}
    assert len(verdict.violations) == (0 if cut else 1)


def test_refused_publish_needs_a_cause_and_creates_no_job(history):
    history.publish("job", accepted=False)
    history.note("refused", "job", error="OperationalError", text="used memory > 'maxmemory'")
    assert "a publish was refused" in history.checked().violations[0]
    history.events.insert(0, Event("full", 0.0, 1, "server", {"pending": "0", "began": "0"}))
    history.happen("relief", "server", 3, pending=0, silent_s=0.5)
    assert history.checked().violations == []
    assert "but it exists" in history.checked(states={"job": "pending"}).violations[0]


def test_chord_with_ended_parts_must_have_its_callback(history):
    for part in ("one", "two"):
        history.publish(part)
        history.run(part, 1, 2)
    history.happen("chord", "task-callback", 0, parts="task-one,task-two")
    assert "chord" in history.checked().violations[0]
    history.publish("callback", at=2.1)
    history.run("callback", 3, 4)
    assert history.checked().violations == []


def test_check_waits_until_quiet_or_without_progress():
    pending = iter(["3 pending", "2 pending", "1 pending", ""])
    assert until_quiet(lambda: next(pending), count().__next__, still_s=0.15) == "", "each look sees something happen"
    assert until_quiet(lambda: "3 pending", lambda: 7, still_s=0.15) == "3 pending"
