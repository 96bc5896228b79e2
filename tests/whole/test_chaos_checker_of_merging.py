"""The checker of the chaos suite finds violations by merged calls in synthetic histories."""

import pytest

from .chaos.synthetic import CHILD, OTHER, WORKER, SyntheticHistory

CALLS = ("k:1", "k:2", "k:3")


@pytest.fixture
def history():
    history = SyntheticHistory()
    for token in CALLS:
        history.call(token)
    return history


def checked(history, run="", tokens=CALLS, states=None, **others):
    """Return the verdict if each call got the result of *run* with *tokens*, or its own of the *states*."""
    states = {**dict.fromkeys(CALLS, "SUCCESS"), **(states or {})}
    value = {"run": run, "tokens": list(tokens)}
    of_tasks = {f"task-{token}": state for token, state in states.items() if state}
    values = {task: value if state == "SUCCESS" else {"exc_type": "ValueError"} for task, state in of_tasks.items()}
    return history.checked(
        results={**history.results(), **of_tasks}, values={**values, **others.pop("values", {})}, **others
    )


def violations(history, *args, **options):
    return checked(history, *args, **options).violations


def test_merged_calls_with_one_result_have_no_violation(history):
    run = history.run_calls(CALLS, 1, 2)
    verdict = checked(history, run)
    assert (verdict.calls, verdict.merged_runs, verdict.violations) == (3, 1, [])


@pytest.mark.parametrize("state", [None, "PENDING", "RETRY"])
def test_call_without_reported_end_is_a_violation(history, state):
    run = history.run_calls(CALLS, 1, 2)
    (violation,) = violations(history, run, states={"k:2": state})
    assert "its end was not reported" in violation
    assert "k:2" in violation


@pytest.mark.parametrize("message_of", ["k:1", "k:2"])
@pytest.mark.parametrize("token", ["k:1", "k:2"])
def test_results_outage_loses_only_the_running_messages_result(history, token, message_of):
    run = history.run_calls(CALLS, 1, 2, message_of=message_of)
    history.happen("down", "results", 1.5, how="killed", forgets_s=0)
    history.happen("up", "results", 3)
    assert (violations(history, run, states={token: None}) == []) is (token == message_of)


def test_result_of_other_calls_is_a_violation(history):
    run = history.run_calls(CALLS, 1, 2)
    assert len(violations(history, run, tokens=CALLS[:2])) == 1
    assert len(violations(history, "another run")) == 3


@pytest.mark.parametrize(("part", "count"), [("k:2", 0), ("k:1", 1), (None, 1)])
def test_split_result_gives_each_call_its_own_part(part, count):
    history = SyntheticHistory()
    history.call("k:2", name="merged_split")
    run = history.run_calls(["k:2"], 1, 2)
    value = {"run": run, "tokens": ["k:2"], "part": part}
    states = {"k:1": None, "k:3": None}
    assert len(violations(history, run, states=states, values={"task-k:2": value})) == count


@pytest.mark.parametrize("killed", [CHILD, WORKER, OTHER])
def test_failure_needs_death_of_the_runs_process(history, killed):
    history.run_calls(CALLS, 1)
    history.happen("kill", "pool process", 1.5, target=killed)
    values = {f"task-{token}": {"exc_type": "WorkerLostError"} for token in CALLS}
    found = violations(history, states=dict.fromkeys(CALLS, "FAILURE"), values=values)
    assert bool(found) is (killed == OTHER)


def test_unexplained_failure_is_a_violation(history):
    run = history.run_calls(CALLS, 1, 2)
    assert "ended in FAILURE" in violations(history, run, states={"k:3": "FAILURE"})[0]


@pytest.mark.parametrize(("target", "is_fine"), [(CHILD, True), (OTHER, False)])
def test_call_reruns_only_after_its_process_died(history, target, is_fine):
    history.run_calls(CALLS, 1, 2)
    history.happen("kill", "pool process", 2.1, target=target)
    run = history.run_calls(CALLS, 4, 5, worker=OTHER, pid=OTHER)
    assert (violations(history, run) == []) is is_fine


def test_retry_allows_a_second_run(history):
    history.run_calls(CALLS, 1, 2, outcome="retried")
    for token in CALLS:
        history.call(token, at=2)
    run = history.run_calls(CALLS, 3, 4)
    assert violations(history, run) == []


@pytest.mark.parametrize("other", ["j:4", "k:4"])
def test_run_must_have_one_key_and_one_type(history, other):
    history.call(other, type="mail" if other == "k:4" else "pdf")
    run = history.run_calls([*CALLS, other], 1, 2)
    found = violations(history, run, tokens=[*CALLS, other], states={other: "SUCCESS"})
    assert any("several tasks, types or keys" in each for each in found)


def test_run_must_contain_each_call_once(history):
    run = history.run_calls([*CALLS, "k:1"], 1, 2)
    assert "a call twice" in violations(history, run)[0]


@pytest.mark.parametrize(("name", "given"), [("merged_first", "k:1"), ("merged_last", "k:3")])
def test_run_must_get_the_arguments_of_the_merge_function(name, given):
    for token in CALLS:
        history = SyntheticHistory()
        for each in CALLS:
            history.call(each, name=name)
        run = history.run_calls(CALLS, 1, 2, given=[token])
        assert (violations(history, run) == []) is (token == given)


@pytest.mark.parametrize(("steps", "count"), [((), 1), ((2.5,), 0), ((2.5, 3.5), 1)])
@pytest.mark.parametrize("follows", ["link", "chain"])
def test_follow_up_must_be_published_once(history, follows, steps, count):
    history.call("k:4", follows=follows)
    run = history.run_calls([*CALLS, "k:4"], 1, 2)
    for at in steps:
        history.step("k:4", at)
    assert len(violations(history, run, tokens=[*CALLS, "k:4"], states={"k:4": "SUCCESS"})) == count


def test_follow_up_must_get_its_calls_result(history):
    history.call("k:4", follows="link")
    run = history.run_calls([*CALLS, "k:4"], 1, 2)
    history.step("k:4", 2.5, has=False)
    found = violations(history, run, tokens=[*CALLS, "k:4"], states={"k:4": "SUCCESS"})
    assert "its follow-up got the result of other calls" in found[0]


@pytest.mark.parametrize("ran", [True, False])
def test_chord_body_must_run_after_merged_calls(history, ran):
    run = history.run_calls(CALLS, 1, 2)
    history.happen("merged_chord", "task-body", 2, calls=",".join(CALLS))
    if ran:
        history.publish("body", at=2)
        history.run("body", 3, 4)
    assert ("all parts of a chord ended" in str(violations(history, run))) is not ran


def test_merged_runs_count_for_their_type(history):
    history.happen("limits", "type:pdf=1", 0.5, began=0.4, before=0, fence=0)
    run = history.run_calls(CALLS, 1, 3)
    history.publish("job", type="pdf")
    history.run("job", 2, 4, fence=2)
    assert "2 at once of type:pdf" in violations(history, run)[0]
