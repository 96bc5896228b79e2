"""Virtual environments in ``build/apps``, one per file in ``tests/apps/requirements``, created on first use."""

import hashlib
import subprocess
import sys
from pathlib import Path

from ..support.processes import ROOT

_REQUIREMENTS = Path(__file__).parent / "requirements"
_WITHOUT_DEPENDENCIES = ROOT / "tests/without_dependencies.txt"


def python_of(name: str, base: str = sys.executable) -> str:
    """Return the path of an interpreter with the packages of ``requirements/<name>.txt`` and this package.

    *base*: the Python that makes the environment.
    """
    folder = ROOT / "build/apps" / name
    python, stamp = folder / "bin/python", folder / "stamp"
    requirements = _REQUIREMENTS / f"{name}.txt"
    inputs = (requirements, _WITHOUT_DEPENDENCIES, ROOT / "pyproject.toml")
    wanted = hashlib.sha256(b"".join(each.read_bytes() for each in inputs)).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        _run(base, "-m", "venv", "--clear", folder)
        _install(python, "-r", requirements)
        _install(python, "--no-deps", "-r", _WITHOUT_DEPENDENCIES, "--editable", ROOT)
        stamp.write_text(wanted)
    return str(python)


def _install(python: Path, *what: object) -> None:
    _run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, *what)


def _run(*command: object) -> None:
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr[-4000:]}"
