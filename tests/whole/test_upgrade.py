"""The test of two releases works: the tree takes over from itself. `make upgrade-check` has a release of its own."""

from dataclasses import replace

import pytest

from celery_affinity.schema.keys import SCHEMA, Keys

from .upgrade.releases import TREE
from .upgrade.takeover import refuse, schema_written_by, take_over


@pytest.mark.slow
def test_a_release_takes_over_from_another_while_jobs_run_and_wait(valkey, redis_client, tmp_path):
    take_over(TREE, replace(TREE, name="other"), valkey.url, tmp_path)


@pytest.mark.slow
def test_a_release_refuses_the_data_of_another_schema_and_changes_none(valkey, redis_client, tmp_path):
    assert schema_written_by(TREE, valkey.url, tmp_path) == str(SCHEMA)
    with pytest.raises(AssertionError, match=r"calls\.py .* must fail"):
        refuse(TREE, valkey.url, tmp_path)
    redis_client.set(Keys().key("schema"), SCHEMA - 1)
    refuse(TREE, valkey.url, tmp_path)
