"""What an engine is asked of a trace, and of changes to it."""

from celery_affinity.lab.changes import Changes, apply_changes
from celery_affinity.lab.scenario import scenario_of
from celery_affinity.lab.trace import Trace

from ..support.lab_scenarios import S, job, scenario, traced, worker


def made(*jobs):
    return scenario_of(Trace(100 * S, (worker("w"),), jobs))


def took(*jobs):
    return [each.took_us / S for each in sorted(made(*jobs).arrivals, key=lambda each: each.number)]


def test_a_job_takes_as_long_as_it_had_its_slot():
    assert took(traced(claimed_s=1, ended_s=4)) == [3]


def test_a_job_without_an_end_takes_the_median_of_its_type_or_else_of_all():
    ended = [traced(claimed_s=0, ended_s=end) for end in (1, 2, 9)]
    assert took(*ended, traced(claimed_s=99), traced("xls"))[3:] == [2, 2]
    assert took(*ended, traced("xls", claimed_s=0, ended_s=7), traced("xls"))[4] == 7
    assert took(traced()) == [0]


def test_a_job_that_still_ran_as_the_trace_ended_runs_beyond_its_end():
    ended = [traced(claimed_s=0, ended_s=end) for end in (1, 2, 9)]
    assert took(*ended, traced(claimed_s=60), traced(since_s=-9, claimed_s=-3))[3:] == [40 + 1 / S, 100 + 1 / S]


def test_a_job_that_was_revoked_or_expired_unclaimed_took_no_slot():
    gone = [traced(outcome="revoked", ended_s=9), traced(outcome="expired", ended_s=9)]
    assert [each.number for each in made(*gone, traced(), traced(outcome="expired", claimed_s=1)).arrivals] == [2, 3]


def test_arrivals_are_in_the_order_of_their_times():
    found = made(traced(since_s=5), traced(since_s=3), traced(since_s=3))
    assert [each.number for each in found.arrivals] == [1, 2, 0]


def test_a_job_from_before_the_trace_arrives_at_its_beginning_and_keeps_its_age():
    (found,) = made(traced(since_s=-4, enqueued_s=-9)).arrivals
    assert (found.since_us, found.enqueued_us) == (0, -9 * S)


def test_a_job_that_had_a_slot_as_the_trace_began_has_it_first_for_the_rest_of_its_time():
    found = made(traced(since_s=-9), traced(since_s=-8, claimed_s=-2, ended_s=5))
    assert [each.number for each in found.arrivals] == [1, 0]
    assert (found.arrivals[0].since_us, found.arrivals[0].took_us) == (-1, 5 * S + 1)


def test_a_trace_s_settings_workers_and_pauses_are_those_of_its_scenario():
    found = scenario_of(Trace(9, (worker("w"),), (), {"age_weight": "3"}, ("pdf",)))
    assert (found.workers, found.settings, found.paused) == ((worker("w"),), {"age_weight": "3"}, ("pdf",))


BEFORE = scenario(
    worker("a", "pdf"),
    worker("b", "xls"),
    *(job(nth, nth, took_s=nth) for nth in range(11)),
    job(11, 3, type_="xls"),
    settings={"age_weight": "16", "rarity": "free"},
)


def test_workers_are_added_and_removed():
    found = apply_changes(BEFORE, Changes(add=[(("pdf", "xls"), 2)], remove=["a"]))
    assert found.workers == (worker("b", "xls"), worker("added-1@lab", "pdf", "xls", slots=2))
    assert found.arrivals == BEFORE.arrivals


def test_settings_are_changed_and_the_others_stay():
    assert apply_changes(BEFORE, Changes(settings={"age_weight": "8"})).settings == {
        "age_weight": "8",
        "rarity": "free",
    }


def test_all_jobs_of_a_type_get_another_priority():
    found = apply_changes(BEFORE, Changes(priorities={"pdf": 8}))
    assert {(each.type, each.priority) for each in found.arrivals} == {("pdf", 8), ("xls", 5)}


def test_more_jobs_of_a_type_keep_its_rhythm_and_what_waited_at_the_beginning():
    found = apply_changes(BEFORE, Changes(rates={"pdf": 1.5}))
    pdfs = [each for each in found.arrivals if each.type == "pdf"]
    assert len(pdfs) == 1 + 15
    assert len(found.arrivals) - len(pdfs) == 1
    assert len({each.number for each in found.arrivals}) == len(found.arrivals), "each has a number of its own"
    assert all(each.since_us == each.enqueued_us <= 10 * S for each in pdfs)
    assert {each.since_us for each in pdfs} > {each.since_us for each in BEFORE.arrivals}, "copies come between others"
    assert [each for each in found.arrivals if each.number <= 11] == list(BEFORE.arrivals)
    assert list(found.arrivals) == sorted(found.arrivals, key=lambda each: (each.since_us, each.number))


def test_fewer_jobs_of_a_type_are_some_of_it():
    found = apply_changes(BEFORE, Changes(rates={"pdf": 0.4}))
    assert {*found.arrivals} < {*BEFORE.arrivals}
    assert len(found.arrivals) == 1 + 4 + 1


def test_a_seed_chooses_the_same_jobs_each_time():
    rates = {"pdf": 0.5}
    once, again = (apply_changes(BEFORE, Changes(rates=rates, seed=3)) for _ in range(2))
    assert once == again
    assert len({apply_changes(BEFORE, Changes(rates=rates, seed=seed)).arrivals for seed in range(9)}) > 1
