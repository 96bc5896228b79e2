"""The integration tests of the installed Celery version: downloaded, not stored in this repository."""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

#: The file with pytest's settings in an archive.
_SETTINGS = "pyproject.toml"


def fetched(directory: Path) -> Path:
    """Return the folder with Celery's ``t/integration``, downloaded once from its source distribution."""
    target = directory / f"celery-{version('celery')}"
    if not (target / _SETTINGS).exists():
        print(f"parity: fetching the tests of Celery {version('celery')} ...", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            unpacked = Path(temporary) / "unpacked"
            _unpack(_downloaded(Path(temporary)), unpacked)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(unpacked, target)  # last, so that the folder is never incomplete
    return target


def _downloaded(directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", "celery", "--dest", str(directory), f"celery=={version('celery')}"]
    subprocess.run(command, check=True)
    (archive,) = directory.glob("celery-*.tar.gz")
    return archive


def _unpack(archive: Path, target: Path) -> None:
    """Unpack only the tests: they test the installed Celery."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            _, _, name = member.name.partition("/")
            if name == _SETTINGS or (name.startswith("t/") and not name.startswith(("t/unit/", "t/benchmarks/"))):
                tar.extract(member.replace(name=name, deep=False), target, filter="data")
