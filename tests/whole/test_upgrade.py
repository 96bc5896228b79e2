"""The upgrade check, here from the working tree to itself; `make upgrade-check` starts from a release."""

from dataclasses import replace

import pytest

from celery_affinity.schema.keys import SCHEMA, Keys

from .upgrade.releases import TREE
from .upgrade.takeover import refuse, schema_written_by, take_over


@pytest.mark.slow
def test_release_takes_over_running_and_waiting_jobs(valkey, redis_client, tmp_path):
    take_over(TREE, replace(TREE, name="other"), valkey.url, tmp_path)


@pytest.mark.slow
def test_release_rejects_and_keeps_data_of_another_schema(valkey, redis_client, tmp_path):
    assert schema_written_by(TREE, valkey.url, tmp_path) == str(SCHEMA)
    with pytest.raises(AssertionError, match=r"calls\.py .* must fail"):
        refuse(TREE, valkey.url, tmp_path)
    redis_client.set(Keys().key("schema"), SCHEMA - 1)
    refuse(TREE, valkey.url, tmp_path)
