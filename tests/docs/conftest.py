"""The site of the docs, made once for all tests that look at it."""

import subprocess
import sys

import pytest

from ..support.made_once import made_once
from ..support.processes import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    return made_once(tmp_path_factory, "site", _make)


def _make(folder):
    words = ["-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html", "docs", str(folder)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
