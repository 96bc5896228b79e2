"""The judge of the chaos suite sees every kind of violation, in stories that never were."""

from itertools import count

import pytest

from .chaos.campaign import until_quiet
from .chaos.ledger import Event
from .chaos.story import CHILD, OTHER, WORKER, Story


@pytest.fixture
def story():
    return Story()


def test_a_job_that_ran_to_its_end_is_fine(story):
    story.publish("job")
    story.run("job", 1, 2)
    verdict = story.judged(states={"job": "done"})
    assert (verdict.accepted, verdict.runs, verdict.violations) == (1, 1, [])


def test_an_accepted_job_that_is_nowhere_is_a_violation(story):
    story.publish("job")
    assert "neither ended nor pending" in story.judged().violations[0]


def test_a_job_that_waits_although_all_is_quiet_is_a_violation(story):
    story.publish("job")
    assert "still waiting" in story.judged(states={"job": "pending"}).violations[0]


def test_a_publish_whose_publisher_did_not_live_to_see_it_accepted_may_be_in_or_not(story):
    story.publish("in", accepted=False)
    story.run("in", 1, 2)
    story.publish("out", accepted=False)
    assert story.judged(states={"in": "done"}).violations == []


@pytest.mark.parametrize(
    ("killed", "at", "is_fine"),
    [(WORKER, 1.5, True), (CHILD, 1.5, True), (WORKER, 2.1, True), (WORKER, 9, False), (OTHER, 1.5, False)],
)
def test_a_second_run_is_explained_by_the_death_of_the_first_ones_process_and_of_no_other(story, killed, at, is_fine):
    story.publish("job")
    story.run("job", 1, 2)
    story.happen("kill", "worker", at, target=killed)
    story.run("job", 7, 8, worker=OTHER, pid=OTHER)
    assert (story.judged(states={"job": "done"}).violations == []) is is_fine


@pytest.mark.parametrize(("seconds", "is_fine"), [(6, True), (1, False)])
def test_a_second_run_is_explained_by_a_stop_past_the_timeout_and_not_by_a_short_one(story, seconds, is_fine):
    story.publish("job")
    story.run("job", 1, 9)
    story.happen("stop", "pdf", 2, target=WORKER)
    story.happen("resume", "pdf", 2 + seconds, target=WORKER)
    story.run("job", 7.5, 8, worker=OTHER, pid=OTHER)
    assert (story.judged(states={"job": "done"}).violations == []) is is_fine


@pytest.mark.parametrize(("seconds", "is_fine"), [(6, True), (1, False)])
def test_a_task_is_stopped_in_the_middle_only_in_a_worker_that_was_fenced(story, seconds, is_fine):
    story.publish("job")
    story.run("job", 1, 9, outcome="SystemExit")
    story.happen("stop", "pdf", 2, target=WORKER)
    story.happen("resume", "pdf", 2 + seconds, target=WORKER)
    story.run("job", 7.5, 8, worker=OTHER, pid=OTHER)
    violations = story.judged(states={"job": "done"}).violations
    assert any("a task ended in" in each for each in violations) is not is_fine


@pytest.mark.parametrize(("start", "is_fine"), [(9.01, True), (9.5, False)])
def test_a_zombie_must_not_start_what_another_has_run_but_for_what_was_in_a_pipe(story, start, is_fine):
    story.publish("job")
    story.happen("stop", "pdf", 2, target=WORKER)
    story.run("job", 7.5, 7.6, worker=OTHER, pid=OTHER)
    story.happen("resume", "pdf", 9, target=WORKER)
    story.run("job", start, start + 0.01)
    assert (story.judged(states={"job": "done"}).violations == []) is is_fine


@pytest.mark.parametrize(("forgets_s", "is_fine"), [(1, True), (0, False)])
def test_only_what_the_servers_policy_may_lose_is_lost_or_run_again(story, forgets_s, is_fine):
    story.publish("gone", at=9.5)
    story.publish("again", at=1)
    story.run("again", 9.2, 9.4)
    story.happen("down", "server", 10, how="power lost", forgets_s=forgets_s)
    story.happen("up", "server", 11)
    story.run("again", 12, 13)
    verdict = story.judged(states={"again": "done"})
    assert (verdict.violations == []) is is_fine
    assert len(verdict.violations) in (0, 2)


def test_what_was_accepted_long_before_the_power_went_is_not_lost(story):
    story.publish("job", at=1)
    story.happen("down", "server", 10, how="power lost", forgets_s=1)
    story.happen("up", "server", 11)
    assert "neither ended nor pending" in story.judged().violations[0]


def test_an_early_acked_job_is_lost_only_with_its_process(story):
    story.publish("job")
    story.run("job", 1)
    assert story.judged(states={"job": "dead"}, reasons={"job": "lost"}).violations
    story.happen("kill", "worker", 1.5, target=WORKER)
    assert story.judged(states={"job": "dead"}, reasons={"job": "lost"}).violations == []


@pytest.mark.parametrize(("result", "is_fine"), [("SUCCESS", True), ("FAILURE", False), (None, False)])
def test_a_job_that_ended_has_the_result_of_its_end(story, result, is_fine):
    story.publish("job")
    story.run("job", 1, 2)
    verdict = story.judged(states={"job": "done"}, results={"task-job": result} if result else {})
    assert (verdict.violations == []) is is_fine
    assert is_fine or "its result should be SUCCESS" in verdict.violations[0]


@pytest.mark.parametrize(("start", "is_fine"), [(2.1, True), (9, False)])
def test_the_state_of_a_retry_may_come_after_the_end_of_the_next_try(story, start, is_fine):
    for job in ("first", "second"):
        story.publish(job, task="task")
    story.run("first", 1, 2, outcome="retried")
    story.run("second", start, start + 0.1, worker=OTHER, pid=OTHER)
    verdict = story.judged(states={"first": "done", "second": "done"}, results={"task": "RETRY"})
    assert (verdict.violations == []) is is_fine


@pytest.mark.parametrize(
    ("killed", "end", "state", "is_fine"),
    [
        (CHILD, 5, "done", True),
        (CHILD, 20, "done", False),  # its worker saw no SUCCESS, and had no reason to ack
        (CHILD, 5, None, False),
        (WORKER, 5, "done", False),  # nobody was left to ack
        (OTHER, 5, "done", False),
    ],
)
def test_a_try_that_was_killed_is_over_if_its_retry_has_succeeded_when_its_worker_sees_the_death(
    story, killed, end, state, is_fine
):
    for job in ("first", "second"):
        story.publish(job, task="task")
    story.run("first", 1)
    story.happen("kill", "a process", 1.5, target=killed)
    story.run("second", end - 1, end, worker=300, pid=300)
    verdict = story.judged(states={"second": "done", **({"first": state} if state else {})})
    assert verdict.lost == ({"its retry had succeeded": 1} if is_fine else {})
    assert (verdict.violations == []) is is_fine


def cut(story):
    story.happen("cut", "*", 1)


def lose_results_server(story):
    story.happen("down", "results", 1, how="killed", forgets_s=0)
    story.happen("up", "results", 3)


def block(story):
    story.happen("block", "pdf", 1, target=WORKER)


@pytest.mark.parametrize(
    ("breaks", "retries", "state", "is_fine"),
    [
        (cut, False, "SUCCESS", True),
        (lose_results_server, False, "SUCCESS", True),
        (block, False, "SUCCESS", True),
        (cut, True, "SUCCESS", False),
        (cut, False, "RETRY", False),
        (cut, False, None, False),
        (lambda _: None, False, "SUCCESS", False),
    ],
    ids=["cut", "no server", "blocked", "it tries again", "another state", "none was noted", "nothing was broken"],
)
@pytest.mark.parametrize("got", ["FAILURE", None])
def test_a_result_may_be_lost_that_a_worker_could_not_store_unless_it_tries_again(
    story, breaks, retries, state, is_fine, got
):
    story.happen("born", "pdf", 0, target=WORKER, retries_results=retries)
    story.publish("job")
    story.run("job", 1, 2)
    breaks(story)
    if state:
        story.happen("unstored", "task-job", 40, worker=WORKER, state=state, error="ConnectionError")
    if got:
        story.happen("got", "task-job", 50, state=got)
    found = story.judged(states={"job": "done"}, results={"task-job": got} if got else {}).violations
    assert (found == []) is is_fine
    assert all("its result should be SUCCESS" in each for each in found)


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_job_that_expired_may_be_revoked_in_vain_by_a_worker_that_could_not_store_that(story, is_noted):
    story.happen("born", "pdf", 0, target=WORKER, retries_results=False)
    cut(story)
    story.publish("job", at=2.5, expires=5)
    if is_noted:
        story.happen("unstored", "task-job", 5.5, worker=WORKER, state="REVOKED", error="ConnectionError")
    is_expired = {"states": {"job": "expired"}, "expired": {"job": 5.0}, "results": {}}
    assert (story.judged(**is_expired).violations == []) is is_noted


@pytest.mark.parametrize(("forgets_s", "is_fine"), [(1e9, True), (0, False)])
def test_only_a_results_server_that_came_back_empty_has_lost_results(story, forgets_s, is_fine):
    story.publish("job")
    story.run("job", 1, 2)
    story.happen("down", "results", 10, how="killed", forgets_s=forgets_s)
    story.happen("up", "results", 11)
    verdict = story.judged(states={"job": "done"}, results={})
    assert (verdict.violations == []) is is_fine


def test_a_results_server_that_comes_back_empty_excuses_no_lost_job(story):
    story.publish("job", at=9.5)
    story.happen("down", "results", 10, how="emptied", forgets_s=1e9)
    story.happen("up", "results", 11)
    assert "neither ended nor pending" in story.judged().violations[0]


def test_a_caller_that_waits_gets_its_result(story):
    story.publish("job")
    story.run("job", 1, 2)
    story.happen("waited", "task-job", 20, asked=10, error="TimeoutError")
    assert "its caller got no result" in story.judged(states={"job": "done"}).violations[0]
    story.happen("got", "task-job", 20, state="FAILURE")
    assert "its caller got FAILURE" in story.judged(states={"job": "done"}).violations[0]


def test_what_expires_while_it_waits_is_revoked_and_does_not_run(story):
    story.publish("job", expires=5)
    is_expired = {"states": {"job": "expired"}, "expired": {"job": 5.0}, "results": {"task-job": "REVOKED"}}
    verdict = story.judged(**is_expired)
    assert (verdict.violations, verdict.lost) == ([], {"expired": 1})
    assert "its result should be REVOKED" in story.judged(**{**is_expired, "results": {}}).violations[0]
    assert "expired before its time" in story.judged(**{**is_expired, "expired": {"job": 4.0}}).violations[0]
    story.run("job", 1, 2)
    assert "ran to its end, and is revoked" in story.judged(**is_expired).violations[0]


def test_what_has_no_time_to_expire_does_not(story):
    story.publish("job")
    is_expired = {"states": {"job": "expired"}, "expired": {"job": 5.0}, "results": {"task-job": "REVOKED"}}
    assert "expired before its time" in story.judged(**is_expired).violations[0]


@pytest.mark.parametrize(("outcome", "is_fine"), [("OperationalError", True), ("done", False)])
def test_a_full_server_explains_a_second_run_of_what_failed_alone(story, outcome, is_fine):
    story.happen("full", "server", 0, pending=0, began=0)
    story.publish("job")
    story.run("job", 1, 2, outcome=outcome)
    story.run("job", 3, 4)
    story.happen("relief", "server", 5, pending=0, silent_s=0.5)
    again = [each for each in story.judged(states={"job": "done"}).violations if "ran again" in each]
    assert (again == []) is is_fine


def test_what_expired_on_its_worker_is_revoked_without_a_run(story):
    story.publish("job", expires=5)
    assert story.judged(states={"job": "done"}, results={"task-job": "REVOKED"}).lost == {"expired": 1}


def test_a_job_must_not_start_before_its_time(story):
    story.publish("job", due=5)
    story.run("job", 4.5, 6)
    assert "before its time" in story.judged().violations[0]


@pytest.mark.parametrize("cut", [True, False])
def test_a_task_whose_retry_was_refused_runs_again_if_something_was_in_the_way(story, cut):
    story.publish("job")
    if cut:
        story.happen("cut", "all", 1)
    story.run("job", 1.1, 1.2, outcome="OperationalError")
    story.run("job", 3, 4)
    verdict = story.judged()
    assert verdict.again == {"its retry could not be published": 1}
    assert len(verdict.violations) == (0 if cut else 1)


def test_a_refused_publish_needs_a_reason_and_leaves_nothing(story):
    story.publish("job", accepted=False)
    story.note("refused", "job", error="OperationalError", text="used memory > 'maxmemory'")
    assert "a publish was refused" in story.judged().violations[0]
    story.events.insert(0, Event("full", 0.0, 1, "server", {"pending": "0", "began": "0"}))
    story.happen("relief", "server", 3, pending=0, silent_s=0.5)
    assert story.judged().violations == []
    assert "it is there" in story.judged(states={"job": "pending"}).violations[0]


def test_a_chord_whose_parts_all_ended_has_its_callback(story):
    for part in ("one", "two"):
        story.publish(part)
        story.run(part, 1, 2)
    story.happen("chord", "task-callback", 0, parts="task-one,task-two")
    assert "chord" in story.judged().violations[0]
    story.publish("callback", at=2.1)
    story.run("callback", 3, 4)
    assert story.judged().violations == []


def test_a_fleet_is_judged_when_all_is_quiet_or_nothing_happens_any_more():
    pending = iter(["3 pending", "2 pending", "1 pending", ""])
    assert until_quiet(lambda: next(pending), count().__next__, still_s=0.15) == "", "each look sees something happen"
    assert until_quiet(lambda: "3 pending", lambda: 7, still_s=0.15) == "3 pending"
