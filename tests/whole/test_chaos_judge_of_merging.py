"""The judge of the chaos suite sees what goes wrong with calls that merge, in stories that never were."""

import pytest

from .chaos.story import CHILD, OTHER, WORKER, Story

CALLS = ("k:1", "k:2", "k:3")


@pytest.fixture
def story():
    story = Story()
    for token in CALLS:
        story.call(token)
    return story


def judged(story, run="", tokens=CALLS, states=None, **others):
    """Return the verdict if the calls got the result of *run*, of *tokens*, or the *states* of some."""
    states = {**dict.fromkeys(CALLS, "SUCCESS"), **(states or {})}
    value = {"run": run, "tokens": list(tokens)}
    of_tasks = {f"task-{token}": state for token, state in states.items() if state}
    values = {task: value if state == "SUCCESS" else {"exc_type": "ValueError"} for task, state in of_tasks.items()}
    return story.judged(
        results={**story.results(), **of_tasks}, values={**values, **others.pop("values", {})}, **others
    )


def violations(story, *args, **options):
    return judged(story, *args, **options).violations


def test_calls_that_are_one_run_and_get_its_result_are_fine(story):
    run = story.run_calls(CALLS, 1, 2)
    verdict = judged(story, run)
    assert (verdict.calls, verdict.merged_runs, verdict.violations) == (3, 1, [])


@pytest.mark.parametrize("state", [None, "PENDING", "RETRY"])
def test_a_call_that_nobody_tells_is_a_violation(story, state):
    run = story.run_calls(CALLS, 1, 2)
    (violation,) = violations(story, run, states={"k:2": state})
    assert "nobody told its end" in violation
    assert "k:2" in violation


@pytest.mark.parametrize("message_of", ["k:1", "k:2"])
@pytest.mark.parametrize("token", ["k:1", "k:2"])
def test_an_outage_of_the_results_explains_a_lost_result_of_the_call_whose_message_was_run(story, token, message_of):
    run = story.run_calls(CALLS, 1, 2, message_of=message_of)
    story.happen("down", "results", 1.5, how="killed", forgets_s=0)
    story.happen("up", "results", 3)
    assert (violations(story, run, states={token: None}) == []) is (token == message_of)


def test_a_result_of_others_or_of_another_run_is_a_violation(story):
    run = story.run_calls(CALLS, 1, 2)
    assert len(violations(story, run, tokens=CALLS[:2])) == 1
    assert len(violations(story, "another run")) == 3


@pytest.mark.parametrize(("part", "count"), [("k:2", 0), ("k:1", 1), (None, 1)])
def test_each_call_gets_its_own_part_of_a_result_that_is_split(part, count):
    story = Story()
    story.call("k:2", name="merged_split")
    run = story.run_calls(["k:2"], 1, 2)
    value = {"run": run, "tokens": ["k:2"], "part": part}
    states = {"k:1": None, "k:3": None}
    assert len(violations(story, run, states=states, values={"task-k:2": value})) == count


@pytest.mark.parametrize("killed", [CHILD, WORKER, OTHER])
def test_a_failure_is_explained_by_the_death_of_the_runs_process_and_of_no_other(story, killed):
    story.run_calls(CALLS, 1)
    story.happen("kill", "pool process", 1.5, target=killed)
    values = {f"task-{token}": {"exc_type": "WorkerLostError"} for token in CALLS}
    found = violations(story, states=dict.fromkeys(CALLS, "FAILURE"), values=values)
    assert bool(found) is (killed == OTHER)


def test_a_failure_that_nothing_explains_is_a_violation(story):
    run = story.run_calls(CALLS, 1, 2)
    assert "ended in FAILURE" in violations(story, run, states={"k:3": "FAILURE"})[0]


@pytest.mark.parametrize(("target", "is_fine"), [(CHILD, True), (OTHER, False)])
def test_a_call_is_run_again_only_if_its_process_died(story, target, is_fine):
    story.run_calls(CALLS, 1, 2)
    story.happen("kill", "pool process", 2.1, target=target)
    run = story.run_calls(CALLS, 4, 5, worker=OTHER, pid=OTHER)
    assert (violations(story, run) == []) is is_fine


def test_a_retry_is_one_more_run(story):
    story.run_calls(CALLS, 1, 2, outcome="retried")
    for token in CALLS:
        story.call(token, at=2)
    run = story.run_calls(CALLS, 3, 4)
    assert violations(story, run) == []


@pytest.mark.parametrize("other", ["j:4", "k:4"])
def test_a_run_has_calls_of_one_key_and_one_type(story, other):
    story.call(other, type="mail" if other == "k:4" else "pdf")
    run = story.run_calls([*CALLS, other], 1, 2)
    found = violations(story, run, tokens=[*CALLS, other], states={other: "SUCCESS"})
    assert any("several tasks, types or keys" in each for each in found)


def test_a_run_has_each_call_once(story):
    run = story.run_calls([*CALLS, "k:1"], 1, 2)
    assert "a call twice" in violations(story, run)[0]


@pytest.mark.parametrize(("name", "given"), [("merged_first", "k:1"), ("merged_last", "k:3")])
def test_a_run_has_the_arguments_that_its_task_says(name, given):
    for token in CALLS:
        story = Story()
        for each in CALLS:
            story.call(each, name=name)
        run = story.run_calls(CALLS, 1, 2, given=[token])
        assert (violations(story, run) == []) is (token == given)


@pytest.mark.parametrize(("steps", "count"), [((), 1), ((2.5,), 0), ((2.5, 3.5), 1)])
@pytest.mark.parametrize("follows", ["link", "chain"])
def test_what_follows_a_call_is_published_once(story, follows, steps, count):
    story.call("k:4", follows=follows)
    run = story.run_calls([*CALLS, "k:4"], 1, 2)
    for at in steps:
        story.step("k:4", at)
    assert len(violations(story, run, tokens=[*CALLS, "k:4"], states={"k:4": "SUCCESS"})) == count


def test_what_follows_gets_the_result_of_its_call(story):
    story.call("k:4", follows="link")
    run = story.run_calls([*CALLS, "k:4"], 1, 2)
    story.step("k:4", 2.5, has=False)
    found = violations(story, run, tokens=[*CALLS, "k:4"], states={"k:4": "SUCCESS"})
    assert "what follows got the result of others" in found[0]


@pytest.mark.parametrize("ran", [True, False])
def test_the_body_of_a_chord_of_merged_calls_runs(story, ran):
    run = story.run_calls(CALLS, 1, 2)
    story.happen("merged_chord", "task-body", 2, calls=",".join(CALLS))
    if ran:
        story.publish("body", at=2)
        story.run("body", 3, 4)
    assert ("all parts of a chord ended" in str(violations(story, run))) is not ran


def test_runs_of_merged_calls_count_for_their_type(story):
    story.happen("limits", "type:pdf=1", 0.5, began=0.4, before=0, fence=0)
    run = story.run_calls(CALLS, 1, 3)
    story.publish("job", type="pdf")
    story.run("job", 2, 4, fence=2)
    assert "2 at once of type:pdf" in violations(story, run)[0]
