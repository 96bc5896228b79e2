"""Which versions a process runs: what a fleet's processes are compared by."""

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("celery_affinity", "celery", "kombu", "redis")


def versions() -> dict[str, str]:
    """Return the versions of this package, of what it stands on, and of Python, by name."""
    return {**{package: _version(package) for package in _PACKAGES}, "python": platform.python_version()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # put on the path by other means than an installer
        return "unknown"
