"""The judge of the chaos suite sees what starts in spite of a key, a limit or a pause, in stories that never were."""

import pytest

from .chaos.story import OTHER, WORKER, Story


@pytest.fixture
def story():
    return Story()


# -- keys


def test_a_key_that_runs_one_after_the_other_is_fine(story):
    for number, job in enumerate(("first", "second")):
        story.publish(job, at=number)
        story.run(job, 2 + number, 3 + number, keys="one", fence=number)
    verdict = story.judged()
    assert (verdict.keyed, verdict.overlaps, verdict.violations) == (2, {}, [])


@pytest.mark.parametrize(("key", "violations"), [("one", 1), ("pair", 0)])
def test_two_at_once_of_one_key_are_a_violation_if_it_says_so(story, key, violations):
    for number, job in enumerate(("first", "second")):
        story.publish(job)
        story.run(job, 1 + number / 10, 2, keys=key, fence=number)
    assert len(story.judged().violations) == violations


@pytest.mark.parametrize("fences", [(1, 2), (2, 1)])
def test_a_run_whose_worker_was_killed_may_overlap_with_one_of_a_later_claim_alone(story, fences):
    story.publish("first")
    story.run("first", 1, keys="one", fence=fences[0])
    story.happen("kill", "worker", 2, target=WORKER)
    story.publish("second", at=2)
    story.run("second", 2.1, 3, worker=OTHER, pid=OTHER, keys="one", fence=fences[1])
    verdict = story.judged(reasons={"first": "lost"}, states={"first": "dead"})
    assert bool(verdict.violations) == (fences == (2, 1))
    assert bool(verdict.overlaps) == (fences == (1, 2))


@pytest.mark.parametrize(("starts", "violations"), [(6, 0), (8, 1)])
def test_more_starts_than_a_rate_allows_are_a_violation(story, starts, violations):
    story.publish("first")
    for number in range(starts):
        story.publish(f"{number}")
        story.run(f"{number}", 0.3, 0.4, keys="rate:rate", fence=number)
    story.publish("done")
    story.run("first", 5, 6)
    story.run("done", 5, 6)
    assert len(story.judged().violations) == violations


# -- an operator


@pytest.mark.parametrize(
    ("what", "is_its_own"), [("type:pdf", True), ("key:one", True), ("*", True), ("type:mail", False)]
)
@pytest.mark.parametrize(("fence", "is_within"), [(5, False), (6, True), (9, True), (10, False)])
def test_nothing_of_what_is_paused_is_claimed_from_the_pause_to_its_end(story, what, is_its_own, fence, is_within):
    story.publish("job", type="pdf")
    story.happen("paused", what, 1, fence=5)
    story.happen("resuming", what, 3, fence=9)
    story.run("job", 2, 4, keys="one", fence=fence)
    verdict = story.judged()
    assert verdict.pauses == 1
    assert bool(verdict.violations) == (is_its_own and is_within)


def test_a_pause_that_the_server_may_have_forgotten_is_not_judged(story):
    story.publish("job", type="pdf")
    story.happen("paused", "*", 1, fence=5)
    story.happen("down", "server", 1.5, how="failed over", forgets_s=1)
    story.happen("up", "server", 2)
    story.run("job", 3, 4, fence=6)
    story.happen("resuming", "*", 5, fence=9)
    verdict = story.judged()
    assert (verdict.pauses, verdict.violations) == (0, [])


def test_a_pause_that_nobody_saw_end_is_not_judged(story):
    story.publish("job", type="pdf")
    story.happen("paused", "*", 1, fence=5)
    story.run("job", 2, 3, fence=6)
    assert story.judged().pauses == 0


def limit(story, text, at, before, after):
    story.happen("limits", text, at + 0.1, began=at, before=before, fence=after)


@pytest.mark.parametrize(("limit_of_type", "violations"), [(1, 1), (2, 0)])
def test_no_more_of_a_type_run_together_than_its_limit(story, limit_of_type, violations):
    limit(story, f"type:pdf={limit_of_type}", 0, 0, 0)
    for number in (1, 2):
        story.publish(f"{number}", type="pdf")
        story.run(f"{number}", 1 + number, 5, fence=number)
    verdict = story.judged()
    assert (verdict.limited, len(verdict.violations)) == (2, violations)


@pytest.mark.parametrize(("starts", "violations"), [((1, 2), 0), ((2, 1), 1)])
def test_a_claim_counts_from_its_fence_on_also_before_its_job_starts(story, starts, violations):
    limit(story, "type:pdf=1", 0, 0, 0)
    for fence, start in enumerate(starts, 1):
        story.publish(f"{fence}", type="pdf")
        story.run(f"{fence}", start, start + 0.5, fence=fence)
    assert len(story.judged().violations) == violations


@pytest.mark.parametrize(
    ("fence", "violations"),
    [
        (5, 0),  # before the limit was lowered
        (6, 0),  # either
        (7, 1),
    ],
)
def test_a_limit_counts_for_the_claims_after_its_change(story, fence, violations):
    limit(story, "type:pdf=2", 0, 0, 0)
    limit(story, "type:pdf=1", 3, 5, 6)
    for number in (1, fence):
        story.publish(f"{number}", type="pdf")
        story.run(f"{number}", 4 if number > 1 else 1, 5, fence=number)
    assert len(story.judged().violations) == violations


def test_a_limit_set_for_a_key_wins_over_the_one_that_its_jobs_state(story):
    for number in (1, 2, 3):
        story.publish(f"{number}")
        story.run(f"{number}", 1, 2, keys="one", fence=number)
    assert len(story.judged().violations) == 2
    limit(story, "one=3", 0, 0, 0)
    assert story.judged().violations == []
    limit(story, "one=0", 0.2, 2, 2)
    assert "limit 0" in story.judged().violations[0]


def test_each_of_two_keys_is_judged(story):
    for number in range(12):
        story.publish(f"{number}")
        story.run(f"{number}", 0.3, 0.4, keys="rate:rate one", fence=number + 1)
    violations = story.judged().violations
    assert any("rate:rate" in each for each in violations)
    assert any("at once of one" in each for each in violations)


def test_no_more_of_a_tenant_run_together_than_its_maximum(story):
    for number in (1, 2, 3):
        story.publish(f"{number}")
        story.run(f"{number}", 1, 2, keys="tenant:small", fence=number)
        story.publish(f"free{number}")
        story.run(f"free{number}", 1, 2, keys="tenant:free", fence=10 + number)
    assert len(story.judged().violations) == 2
    story.happen("limits", "none", 0.1, tenants="small=max:3 free=max:2", began=0, before=0, fence=0)
    (violation,) = story.judged().violations
    assert violation.startswith("3 at once of tenant:free, limit 2")


def test_the_limit_of_a_pattern_is_that_of_each_key_that_matches(story):
    limit(story, "many:*=2", 0, 0, 0)
    for fence, key in enumerate(("many:1", "many:1", "many:2", "many:2", "many:2"), 1):
        story.publish(f"{fence}")
        story.run(f"{fence}", 1, 2, keys=key, fence=fence)
    (violation,) = story.judged().violations
    assert violation.startswith("3 at once of many:2, limit 2")


def test_of_a_type_with_a_limit_a_run_that_was_killed_may_overlap_with_a_later_claim(story):
    limit(story, "type:pdf=1", 0, 0, 0)
    story.publish("first", type="pdf")
    story.run("first", 1, fence=1)
    story.happen("kill", "worker", 2, target=WORKER)
    story.publish("second", type="pdf", at=2)
    story.run("second", 2.1, 3, worker=OTHER, pid=OTHER, fence=2)
    verdict = story.judged(reasons={"first": "lost"}, states={"first": "dead"})
    assert (verdict.violations, verdict.overlaps) == ([], {"its process was killed": 1})


@pytest.mark.parametrize(("reserve", "violations"), [("pdf:queued=6", 2), ("pdf:queued=4", 0), ("mail:queued=6", 0)])
@pytest.mark.parametrize("is_born", [True, False])
def test_a_class_leaves_its_reserve_to_others_in_a_whole_fleet(story, reserve, violations, is_born):
    story.happen("born", "pdf", 9, target=WORKER, retries_results=False)
    story.happen("born", "mail", 0, target=OTHER, retries_results=False)
    story.happen("limits", "none", 20, reserve=reserve, began=20, before=0, fence=0)
    for fence, mode in enumerate(("queued", "on_demand", "queued", "queued"), 1):  # 8 slots serve the type
        story.publish(f"{fence}", type="pdf")
        story.run(f"{fence}", 21, 22, fence=fence, mode=mode)
    story.publish("elsewhere", type="mail")
    story.run("elsewhere", 21, 22, fence=0, worker=OTHER, pid=OTHER)
    story.happen("whole", "fleet", 10)
    if is_born:
        story.happen("born", "post", 19, target=300, retries_results=False)
    assert len(story.judged().violations) == (0 if is_born else violations)
