"""Installed Pythons by version."""

import os
import shutil
import subprocess
from pathlib import Path


def interpreter(version: str) -> str | None:
    """Return a Python of *version* ("3.12"): pyenv's newest, or the one on the path, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(pyenv.glob(f"{version}.*/bin/python"), key=lambda path: _number(path.parents[1].name))
    for each in (*(str(path) for path in reversed(installed)), shutil.which(f"python{version}")):
        if each and subprocess.run([each, "-c", ""], capture_output=True, check=False).returncode == 0:
            return each
    return None


def _number(name: str) -> int:
    last = name.rpartition(".")[2]
    return int(last) if last.isdigit() else -1
