import tempfile
from pathlib import Path

import pytest

from .postgres import Postgres


@pytest.fixture
def postgres():
    """A PostgreSQL server. It is in a folder of its own: those of pytest are closed to its user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        server = Postgres(Path(folder) / "postgres")
        yield server
        server.stop()
