"""The versions that a process runs, by which a fleet's processes are compared."""

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("celery_affinity", "celery", "kombu", "redis")


def versions() -> dict[str, str]:
    """Return the versions of this package, of Celery, kombu and redis-py, and of Python, by name."""
    return {**{package: _version(package) for package in _PACKAGES}, "python": platform.python_version()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # put on the path by other means than an installer
        return "unknown"
