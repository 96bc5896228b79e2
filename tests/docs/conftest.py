"""The site of the docs, made once for all tests that look at it; and the app of a page."""

import subprocess
import sys

import pytest

from ..support.made_once import made_once
from ..support.pages import blocks
from ..support.processes import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    return made_once(tmp_path_factory, "site", _make)


@pytest.fixture
def shop(request, valkey, redis_client):
    """Return the names in the block ``shop.py`` of the page of the test's module, `PAGE`, with an app of the server."""
    names = {"__name__": "shop"}
    exec(blocks(request.module.PAGE)["shop.py"], names)
    app = names["app"]
    app.conf.update(broker_url=valkey.url, task_ignore_result=True)
    yield names
    app.close()


def _make(folder):
    words = ["-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html", "docs", str(folder)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
