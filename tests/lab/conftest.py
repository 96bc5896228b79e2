"""What tests of the lab's commands share."""

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_affinity.cli import affinity


@pytest.fixture
def lab():
    """Return a function that runs a command of the lab as a user does, and returns its exit code and output."""

    def run(*words):
        found = CliRunner().invoke(affinity, ["lab", *map(str, words)], obj=CLIContext(None, False, None))
        return found.exit_code, found.output

    return run
