"""A short storm with faults of nodes, workers and connections; `make chaos ARGS=--cluster` runs longer ones."""

import pytest

from ..support.ledger import Entry, ran_again
from .chaos import on_cluster


@pytest.mark.parametrize(
    ("fences", "death_s", "is_again"),
    [((7, 7), 9.9, False), ((7, 7), 10.3, False), ((7, 7), 20.0, True), ((7, 8), 10.3, True), ((0, 0), 10.3, True)],
    ids=["after-the-death", "before-the-death", "no-death", "known-claim", "no-fence"],
)
def test_job_may_restart_when_its_claim_died_with_the_primary(fences, death_s, is_again):
    first, second = Entry("start", "job", 1, 10.0, fences[0]), Entry("start", "job", 1, 13.0, fences[1])
    other = Entry("start", "other", 1, 10.1, 6)
    assert list(ran_again([first, other, second], [death_s])) == ([first] if is_again else [])


@pytest.mark.slow
def test_cluster_faults_lose_or_repeat_no_job(tmp_path):
    report = on_cluster.blow(25, "7", tmp_path)
    assert report.violations == [], report
    assert report.faults.total() > 3
