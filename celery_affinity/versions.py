"""The versions that a process runs, by which a fleet's processes are compared, and where to install from."""

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("celery_affinity", "celery", "kombu", "redis")

#: Where to install from: there is no release on a package index yet.
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
    except PackageNotFoundError:  # put on the path by other means than an installer
        return "unknown"
