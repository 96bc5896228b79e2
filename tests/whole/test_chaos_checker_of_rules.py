"""The checker of the chaos suite finds starts against a key, a limit or a pause, in synthetic histories."""

import pytest

from .chaos.synthetic import OTHER, WORKER, SyntheticHistory


@pytest.fixture
def history():
    return SyntheticHistory()


# -- keys


def test_jobs_of_a_key_may_run_in_turn(history):
    for number, job in enumerate(("first", "second")):
        history.publish(job, at=number)
        history.run(job, 2 + number, 3 + number, keys="one", fence=number)
    verdict = history.checked()
    assert (verdict.keyed, verdict.overlaps, verdict.violations) == (2, {}, [])


@pytest.mark.parametrize(("key", "violations"), [("one", 1), ("pair", 0)])
def test_simultaneous_runs_of_an_exclusive_key_are_violations(history, key, violations):
    for number, job in enumerate(("first", "second")):
        history.publish(job)
        history.run(job, 1 + number / 10, 2, keys=key, fence=number)
    assert len(history.checked().violations) == violations


@pytest.mark.parametrize("fences", [(1, 2), (2, 1)])
def test_killed_run_may_overlap_only_with_a_later_claim(history, fences):
    history.publish("first")
    history.run("first", 1, keys="one", fence=fences[0])
    history.happen("kill", "worker", 2, target=WORKER)
    history.publish("second", at=2)
    history.run("second", 2.1, 3, worker=OTHER, pid=OTHER, keys="one", fence=fences[1])
    verdict = history.checked(reasons={"first": "lost"}, states={"first": "dead"})
    assert bool(verdict.violations) == (fences == (2, 1))
    assert bool(verdict.overlaps) == (fences == (1, 2))


@pytest.mark.parametrize(("starts", "violations"), [(6, 0), (8, 1)])
def test_starts_above_the_rate_are_a_violation(history, starts, violations):
    history.publish("first")
    for number in range(starts):
        history.publish(f"{number}")
        history.run(f"{number}", 0.3, 0.4, keys="rate:rate", fence=number)
    history.publish("done")
    history.run("first", 5, 6)
    history.run("done", 5, 6)
    assert len(history.checked().violations) == violations


# -- changes by an operator


@pytest.mark.parametrize(
    ("what", "is_affected"), [("type:pdf", True), ("key:one", True), ("*", True), ("type:mail", False)]
)
@pytest.mark.parametrize(("fence", "is_within"), [(5, False), (6, True), (9, True), (10, False)])
def test_claim_during_a_pause_is_a_violation(history, what, is_affected, fence, is_within):
    history.publish("job", type="pdf")
    history.happen("paused", what, 1, fence=5)
    history.happen("resuming", what, 3, fence=9)
    history.run("job", 2, 4, keys="one", fence=fence)
    verdict = history.checked()
    assert verdict.pauses == 1
    assert bool(verdict.violations) == (is_affected and is_within)


def test_possibly_forgotten_pause_is_not_checked(history):
    history.publish("job", type="pdf")
    history.happen("paused", "*", 1, fence=5)
    history.happen("down", "server", 1.5, how="failed over", forgets_s=1)
    history.happen("up", "server", 2)
    history.run("job", 3, 4, fence=6)
    history.happen("resuming", "*", 5, fence=9)
    verdict = history.checked()
    assert (verdict.pauses, verdict.violations) == (0, [])


def test_pause_without_observed_end_is_not_checked(history):
    history.publish("job", type="pdf")
    history.happen("paused", "*", 1, fence=5)
    history.run("job", 2, 3, fence=6)
    assert history.checked().pauses == 0


def limit(history, text, at, before, after):
    history.happen("limits", text, at + 0.1, began=at, before=before, fence=after)


@pytest.mark.parametrize(("limit_of_type", "violations"), [(1, 1), (2, 0)])
def test_runs_above_a_type_limit_are_violations(history, limit_of_type, violations):
    limit(history, f"type:pdf={limit_of_type}", 0, 0, 0)
    for number in (1, 2):
        history.publish(f"{number}", type="pdf")
        history.run(f"{number}", 1 + number, 5, fence=number)
    verdict = history.checked()
    assert (verdict.limited, len(verdict.violations)) == (2, violations)


@pytest.mark.parametrize(("starts", "violations"), [((1, 2), 0), ((2, 1), 1)])
def test_claim_counts_before_its_job_starts(history, starts, violations):
    limit(history, "type:pdf=1", 0, 0, 0)
    for fence, start in enumerate(starts, 1):
        history.publish(f"{fence}", type="pdf")
        history.run(f"{fence}", start, start + 0.5, fence=fence)
    assert len(history.checked().violations) == violations


@pytest.mark.parametrize(
    ("fence", "violations"),
    [
        (5, 0),  # before the limit was lowered
        (6, 0),  # before or after
        (7, 1),
    ],
)
def test_limit_applies_to_claims_after_its_change(history, fence, violations):
    limit(history, "type:pdf=2", 0, 0, 0)
    limit(history, "type:pdf=1", 3, 5, 6)
    for number in (1, fence):
        history.publish(f"{number}", type="pdf")
        history.run(f"{number}", 4 if number > 1 else 1, 5, fence=number)
    assert len(history.checked().violations) == violations


def test_operators_key_limit_overrides_the_jobs_limit(history):
    for number in (1, 2, 3):
        history.publish(f"{number}")
        history.run(f"{number}", 1, 2, keys="one", fence=number)
    assert len(history.checked().violations) == 2
    limit(history, "one=3", 0, 0, 0)
    assert history.checked().violations == []
    limit(history, "one=0", 0.2, 2, 2)
    assert "limit 0" in history.checked().violations[0]


def test_checker_checks_both_keys_of_a_job(history):
    for number in range(12):
        history.publish(f"{number}")
        history.run(f"{number}", 0.3, 0.4, keys="rate:rate one", fence=number + 1)
    violations = history.checked().violations
    assert any("rate:rate" in each for each in violations)
    assert any("at once of one" in each for each in violations)


def test_runs_above_a_tenants_maximum_are_violations(history):
    for number in (1, 2, 3):
        history.publish(f"{number}")
        history.run(f"{number}", 1, 2, keys="tenant:small", fence=number)
        history.publish(f"free{number}")
        history.run(f"free{number}", 1, 2, keys="tenant:free", fence=10 + number)
    assert len(history.checked().violations) == 2
    history.happen("limits", "none", 0.1, tenants="small=max:3 free=max:2", began=0, before=0, fence=0)
    (violation,) = history.checked().violations
    assert violation.startswith("3 at once of tenant:free, limit 2")


def test_pattern_limit_applies_to_each_matching_key(history):
    limit(history, "many:*=2", 0, 0, 0)
    for fence, key in enumerate(("many:1", "many:1", "many:2", "many:2", "many:2"), 1):
        history.publish(f"{fence}")
        history.run(f"{fence}", 1, 2, keys=key, fence=fence)
    (violation,) = history.checked().violations
    assert violation.startswith("3 at once of many:2, limit 2")


def test_killed_run_of_a_limited_type_may_overlap(history):
    limit(history, "type:pdf=1", 0, 0, 0)
    history.publish("first", type="pdf")
    history.run("first", 1, fence=1)
    history.happen("kill", "worker", 2, target=WORKER)
    history.publish("second", type="pdf", at=2)
    history.run("second", 2.1, 3, worker=OTHER, pid=OTHER, fence=2)
    verdict = history.checked(reasons={"first": "lost"}, states={"first": "dead"})
    assert (verdict.violations, verdict.overlaps) == ([], {"its process was killed": 1})


@pytest.mark.parametrize(("reserve", "violations"), [("pdf:queued=6", 2), ("pdf:queued=4", 0), ("mail:queued=6", 0)])
@pytest.mark.parametrize("is_born", [True, False])
def test_class_leaves_its_reserve_free_in_a_complete_fleet(history, reserve, violations, is_born):
    history.happen("born", "pdf", 9, target=WORKER, retries_results=False)
    history.happen("born", "mail", 0, target=OTHER, retries_results=False)
    history.happen("limits", "none", 20, reserve=reserve, began=20, before=0, fence=0)
    for fence, mode in enumerate(("queued", "on_demand", "queued", "queued"), 1):  # 8 slots serve the type
        history.publish(f"{fence}", type="pdf")
        history.run(f"{fence}", 21, 22, fence=fence, mode=mode)
    history.publish("elsewhere", type="mail")
    history.run("elsewhere", 21, 22, fence=0, worker=OTHER, pid=OTHER)
    history.happen("whole", "fleet", 10)
    if is_born:
        history.happen("born", "post", 19, target=300, retries_results=False)
    assert len(history.checked().violations) == (0 if is_born else violations)
