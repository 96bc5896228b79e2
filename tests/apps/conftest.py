"""The fixture of the tests whose programs need PostgreSQL."""

import tempfile
from pathlib import Path

import pytest

from .postgres import Postgres


@pytest.fixture
def postgres():
    """Return a PostgreSQL server. Its user cannot open the folders of pytest, so it has another folder."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        server = Postgres(Path(folder) / "postgres")
        yield server
        server.stop()
