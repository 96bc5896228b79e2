"""Celery's own integration tests, of the version that is installed here: downloaded, never kept in this repository."""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

#: pytest's settings, in an archive.
_SETTINGS = "pyproject.toml"


def fetched(directory: Path) -> Path:
    """Return the folder that holds Celery's ``t/integration``, filled from its source distribution the first time."""
    target = directory / f"celery-{version('celery')}"
    if not (target / _SETTINGS).exists():
        print(f"parity: fetching the tests of Celery {version('celery')} ...", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            unpacked = Path(temporary) / "unpacked"
            _unpack(_downloaded(Path(temporary)), unpacked)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(unpacked, target)  # last: a half-filled folder would be taken for a full one
    return target


def _downloaded(directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", "celery", "--dest", str(directory), f"celery=={version('celery')}"]
    subprocess.run(command, check=True)
    (archive,) = directory.glob("celery-*.tar.gz")
    return archive


def _unpack(archive: Path, target: Path) -> None:
    """Unpack the tests alone: the Celery that they test is the one that is installed."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            _, _, name = member.name.partition("/")
            if name == _SETTINGS or (name.startswith("t/") and not name.startswith(("t/unit/", "t/benchmarks/"))):
                tar.extract(member.replace(name=name, deep=False), target, filter="data")
