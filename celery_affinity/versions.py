"""Versions of this process's packages, for comparison within a fleet, and the installation source."""

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("celery_affinity", "celery", "kombu", "redis")

#: Installation source: there is no release on a package index yet.
SOURCE = "git+https://github.com/celery-affinity/celery_affinity"


def versions() -> dict[str, str]:
    """Return the versions of this package, of Celery, kombu and redis-py, and of Python, by name."""
    return {**{package: _version(package) for package in _PACKAGES}, "python": platform.python_version()}


def install_with(extra: str) -> str:
    """Return the command that installs this package with one of its extras."""
    return f"pip install 'celery-affinity[{extra}] @ {SOURCE}'"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # on the path, but not installed
        return "unknown"
