"""A scenario is derived from a trace and from changes to it."""

from celery_affinity.lab.changes import Changes, apply_changes
from celery_affinity.lab.scenario import scenario_of
from celery_affinity.lab.trace import Trace

from ..support.lab_scenarios import S, job, scenario, traced, worker


def made(*jobs):
    return scenario_of(Trace(100 * S, (worker("w"),), jobs))


def took(*jobs):
    return [each.took_us / S for each in sorted(made(*jobs).arrivals, key=lambda each: each.number)]


def test_job_length_is_its_slot_time():
    assert took(traced(claimed_s=1, ended_s=4)) == [3]


def test_job_without_an_end_takes_the_median_length():
    ended = [traced(claimed_s=0, ended_s=end) for end in (1, 2, 9)]
    assert took(*ended, traced(claimed_s=99), traced("xls"))[3:] == [2, 2]
    assert took(*ended, traced("xls", claimed_s=0, ended_s=7), traced("xls"))[4] == 7
    assert took(traced()) == [0]


def test_job_running_at_the_traces_end_runs_beyond_it():
    ended = [traced(claimed_s=0, ended_s=end) for end in (1, 2, 9)]
    assert took(*ended, traced(claimed_s=60), traced(since_s=-9, claimed_s=-3))[3:] == [40 + 1 / S, 100 + 1 / S]


def test_job_revoked_or_expired_unclaimed_is_omitted():
    gone = [traced(outcome="revoked", ended_s=9), traced(outcome="expired", ended_s=9)]
    assert [each.number for each in made(*gone, traced(), traced(outcome="expired", claimed_s=1)).arrivals] == [2, 3]


def test_arrivals_are_ordered_by_time():
    changed = made(traced(since_s=5), traced(since_s=3), traced(since_s=3))
    assert [each.number for each in changed.arrivals] == [1, 2, 0]


def test_job_older_than_the_trace_keeps_its_age():
    (changed,) = made(traced(since_s=-4, enqueued_s=-9)).arrivals
    assert (changed.since_us, changed.enqueued_us) == (0, -9 * S)


def test_job_running_at_the_traces_start_is_claimed_first():
    changed = made(traced(since_s=-9), traced(since_s=-8, claimed_s=-2, ended_s=5))
    assert [each.number for each in changed.arrivals] == [1, 0]
    assert (changed.arrivals[0].since_us, changed.arrivals[0].took_us) == (-1, 5 * S + 1)


def test_scenario_has_the_traces_settings_workers_and_pauses():
    changed = scenario_of(Trace(9, (worker("w"),), (), {"age_weight": "3"}, ("pdf",)))
    assert (changed.workers, changed.settings, changed.paused) == ((worker("w"),), {"age_weight": "3"}, ("pdf",))


BEFORE = scenario(
    worker("a", "pdf"),
    worker("b", "xls"),
    *(job(nth, nth, took_s=nth) for nth in range(11)),
    job(11, 3, type_="xls"),
    settings={"age_weight": "16", "rarity": "free"},
)


def test_changes_add_and_remove_workers():
    changed = apply_changes(BEFORE, Changes(add=[(("pdf", "xls"), 2)], remove=["a"]))
    assert changed.workers == (worker("b", "xls"), worker("added-1@lab", "pdf", "xls", slots=2))
    assert changed.arrivals == BEFORE.arrivals


def test_changes_replace_only_the_given_settings():
    changed = apply_changes(BEFORE, Changes(settings={"age_weight": "8"}))
    assert changed.settings == {"age_weight": "8", "rarity": "free"}


def test_changes_set_the_priority_of_a_type():
    changed = apply_changes(BEFORE, Changes(priorities={"pdf": 8}))
    assert {(each.type, each.priority) for each in changed.arrivals} == {("pdf", 8), ("xls", 5)}


def test_higher_rate_adds_jobs_in_the_same_rhythm():
    changed = apply_changes(BEFORE, Changes(rates={"pdf": 1.5}))
    pdfs = [each for each in changed.arrivals if each.type == "pdf"]
    assert len(pdfs) == 1 + 15
    assert len(changed.arrivals) - len(pdfs) == 1
    assert len({each.number for each in changed.arrivals}) == len(changed.arrivals), "numbers are unique"
    assert all(each.since_us == each.enqueued_us <= 10 * S for each in pdfs)
    assert {each.since_us for each in pdfs} > {each.since_us for each in BEFORE.arrivals}, "copies are interleaved"
    assert [each for each in changed.arrivals if each.number <= 11] == list(BEFORE.arrivals)
    assert list(changed.arrivals) == sorted(changed.arrivals, key=lambda each: (each.since_us, each.number))


def test_lower_rate_keeps_a_subset_of_jobs():
    changed = apply_changes(BEFORE, Changes(rates={"pdf": 0.4}))
    assert {*changed.arrivals} < {*BEFORE.arrivals}
    assert len(changed.arrivals) == 1 + 4 + 1


def test_seed_selects_the_same_jobs_each_time():
    rates = {"pdf": 0.5}
    once, again = (apply_changes(BEFORE, Changes(rates=rates, seed=3)) for _ in range(2))
    assert once == again
    assert len({apply_changes(BEFORE, Changes(rates=rates, seed=seed)).arrivals for seed in range(9)}) > 1
