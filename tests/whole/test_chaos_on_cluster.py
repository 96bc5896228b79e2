"""Faults of nodes, workers and connections at once: a short storm; `make chaos ARGS=--cluster` has longer ones."""

import pytest

from .chaos import on_cluster


@pytest.mark.slow
def test_no_job_is_lost_or_runs_twice_whatever_happens_to_nodes_and_workers_at_once(tmp_path):
    report = on_cluster.blow(25, "7", tmp_path)
    assert report.violations == [], report
    assert report.faults.total() > 3
