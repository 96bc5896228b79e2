"""Builds the packages of a release from a git ref, with separately installed tools, and checks them with twine."""

import re
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[3]
OUTPUT = ROOT / "build" / "release"
KEPT = ROOT / "dist"

_TOOLS = ("build", "twine>=6.1", "trove-classifiers")  # twine supports licence expressions since 6.1
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


class NotReadyError(Exception):
    """The release must not be uploaded."""


def version_at(ref: str) -> str:
    """Return the version of *ref*; raise NotReadyError if *ref* is a tag of another version."""
    text = _git("show", f"{ref}:celery_affinity/__init__.py").decode()
    (version,) = _VERSION.findall(text)
    tags = [each for each in _git("tag", "--list", ref).decode().split() if each == ref]
    if tags and ref != f"v{version}":
        raise NotReadyError(f"the tag {ref} has version {version}: its name must be v{version}")
    return version


def build(ref: str, output: Path = OUTPUT) -> list[Path]:
    """Build the source package of *ref*, and the wheel from it, in *output*, which is emptied first."""
    shutil.rmtree(output, ignore_errors=True)
    source = output / "source"
    source.mkdir(parents=True)
    with tarfile.open(fileobj=BytesIO(_git("archive", ref))) as archive:
        archive.extractall(source, filter="data")
    python = install(sys.executable, output / "tools", *_TOOLS)
    _run([python, "-m", "build", "--outdir", output / "dist", source])
    return sorted((output / "dist").iterdir())


def keep(wheel: Path) -> Path:
    """Copy the wheel of a release for the tests of the next release; return the copy."""
    KEPT.mkdir(exist_ok=True)
    return Path(shutil.copy(wheel, KEPT))


def last_kept() -> Path | None:
    """Return the last kept wheel, or None."""
    return max(KEPT.glob("celery_affinity-*.whl"), key=lambda each: each.stat().st_mtime_ns, default=None)


def twine_check(packages: list[Path]) -> None:
    """Check with twine that a package index can show the descriptions; raise NotReadyError if not."""
    _run([OUTPUT / "tools" / "bin" / "python", "-m", "twine", "check", "--strict", *packages])


def classifiers() -> set[str]:
    """Return the classifiers that the package index accepts."""
    code = "from trove_classifiers import classifiers; print(*classifiers, sep='\\n')"
    return set(_run([OUTPUT / "tools" / "bin" / "python", "-c", code]).splitlines())


def install(interpreter: Path | str, folder: Path, *packages: str | Path) -> Path:
    """Create an environment in *folder* with only *packages* and their dependencies; return its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    _run([interpreter, "-m", "venv", folder])
    python = folder / "bin" / "python"
    _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
    return python


def _run(command: list[str | Path]) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReadyError(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise NotReadyError(f"git {' '.join(words)}: {done.stderr.decode().strip()}")
    return done.stdout
