import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_affinity.cli import affinity


@pytest.fixture
def lab():
    """Return a function that runs a lab command in this process and returns its exit code and output."""

    def run(*words):
        result = CliRunner().invoke(affinity, ["lab", *map(str, words)], obj=CLIContext(None, False, None))
        return result.exit_code, result.output

    return run
