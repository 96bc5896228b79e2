"""The test of two releases works: the tree takes over from itself. `make upgrade-check` has a release of its own."""

from dataclasses import replace

import pytest

from .upgrade.releases import TREE
from .upgrade.takeover import take_over


@pytest.mark.slow
def test_a_release_takes_over_from_another_while_jobs_run_and_wait(valkey, redis_client, tmp_path):
    take_over(TREE, replace(TREE, name="other"), valkey.url, tmp_path)
