"""Faults of workers, of servers and of connections in a fleet of two cohorts; `make chaos ARGS=--cohorts` has more."""

import pytest

from .chaos import on_cohorts
from .chaos.cohorts_judge import Run, Runs, judge


@pytest.mark.slow
def test_no_job_is_lost_or_runs_twice_whatever_happens_to_the_servers_of_two_cohorts(tmp_path):
    report = on_cohorts.blow(25, "7", tmp_path)
    assert report.violations == [], report
    assert report.faults.total() > 3


def judged(*runs, killed=None, away=(), slots=9):
    """Return what the judge says of runs of jobs that were all sent, and killed workers."""
    jobs = {run.job for run in runs}
    book = Runs(jobs, jobs, {str(number): run for number, run in enumerate(runs)}, killed or {}, {1: slots, 2: slots})
    book.away = list(away)
    return list(judge(book))


def test_the_judge_wants_each_accepted_job_to_end():
    assert judged(Run("a.0", 1, "-", 1.0, 2.0)) == []
    assert "did not end" in judged(Run("a.0", 1, "-", 1.0))[0]


def test_the_judge_wants_a_kill_for_each_further_run():
    first, again = Run("a.0", 1, "-", 1.0, 2.0), Run("a.0", 2, "-", 9.0, 9.5)
    assert "without a kill" in judged(first, again)[0]
    assert judged(first, again, killed={1: 2.5}) == []
    assert "without a kill" in judged(first, again, killed={1: 8.0})[0], "it had told by then"
    assert judged(first, again, killed={1: 8.0}, away=[(1.5, 7.0)]) == [], "no server to tell"


def test_the_judge_counts_a_retry_of_a_run_that_is_repeated():
    runs = [Run("a.0", 1, "-", 1.0, 2.0), Run("a.0", 2, "-", 3.0, 4.0), *(Run("a.1", 2, "-", n, n) for n in (5.0, 6.0))]
    assert judged(*runs, killed={1: 2.1}) == []
    assert "a.0" in judged(*runs)[0]


def test_the_judge_finds_more_runs_than_slots_and_two_of_a_key():
    at_once = [Run("a.0", 1, "k", 1.0, 3.0), Run("b.0", 1, "k", 2.0, 3.0)]
    more, keyed = judged(*at_once, slots=1)
    assert "2 jobs at once in 1 slots" in more
    assert "of key k" in keyed
    assert judged(Run("a.0", 1, "k", 1.0, 2.0), Run("b.0", 1, "k", 2.0, 3.0), slots=1) == []
    assert judged(*at_once, killed={1: 1.5})[-1:] == [], "the process of a killed worker ends by itself"
