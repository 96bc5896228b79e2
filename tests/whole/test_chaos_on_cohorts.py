"""Faults of workers, servers and connections with two cohorts; `make chaos ARGS=--cohorts` runs longer."""

import pytest

from .chaos import on_cohorts
from .chaos.cohorts_checker import Run, Runs, check


@pytest.mark.slow
def test_cohort_faults_lose_or_repeat_no_job(tmp_path):
    report = on_cohorts.blow(25, "7", tmp_path)
    assert report.violations == [], report
    assert report.faults.total() > 3


def checked(*runs, killed=None, away=(), slots=9):
    """Return the violations by runs of jobs that were all sent and accepted."""
    jobs = {run.job for run in runs}
    history = Runs(
        jobs, jobs, {str(number): run for number, run in enumerate(runs)}, killed or {}, {1: slots, 2: slots}
    )
    history.away = list(away)
    return list(check(history))


def test_each_accepted_job_must_end():
    assert checked(Run("a.0", 1, "-", 1.0, 2.0)) == []
    assert "did not end" in checked(Run("a.0", 1, "-", 1.0))[0]


def test_each_repeated_run_needs_a_kill():
    first, again = Run("a.0", 1, "-", 1.0, 2.0), Run("a.0", 2, "-", 9.0, 9.5)
    assert "without a kill" in checked(first, again)[0]
    assert checked(first, again, killed={1: 2.5}) == []
    assert "without a kill" in checked(first, again, killed={1: 8.0})[0], "it had reported its end"
    assert checked(first, again, killed={1: 8.0}, away=[(1.5, 7.0)]) == [], "it could not reach the server"


def test_retry_of_a_repeated_run_may_repeat():
    runs = [Run("a.0", 1, "-", 1.0, 2.0), Run("a.0", 2, "-", 3.0, 4.0), *(Run("a.1", 2, "-", n, n) for n in (5.0, 6.0))]
    assert checked(*runs, killed={1: 2.1}) == []
    assert "a.0" in checked(*runs)[0]


def test_simultaneous_runs_above_slots_or_key_are_found():
    at_once = [Run("a.0", 1, "k", 1.0, 3.0), Run("b.0", 1, "k", 2.0, 3.0)]
    more, keyed = checked(*at_once, slots=1)
    assert "2 jobs at once in 1 slots" in more
    assert "of key k" in keyed
    assert checked(Run("a.0", 1, "k", 1.0, 2.0), Run("b.0", 1, "k", 2.0, 3.0), slots=1) == []
    assert checked(*at_once, killed={1: 1.5})[-1:] == [], "the pool process of a killed worker ends without a request"
