"""The tier of each test selects the Makefile target that runs it."""

import pytest

#: The tiers. `make test` runs the first one, `make slow` the last one, and `make test-<tier>` each of the others.
TIERS = ("test", "redis", "docs", "whole", "apps", "slow")

#: Tiers that take long: `.ci/run` does not run them, nor does a run without a tier.
LONG = ("apps", "slow")

_FOLDERS = {"tests/apps": "apps", "tests/docs": "docs", "tests/whole": "whole"}


def tier_of(item: pytest.Item) -> str:
    """Return the tier of *item*, set by its marker or otherwise by its folder, its fixtures or its server."""
    for tier in reversed(TIERS):
        if item.get_closest_marker(tier):
            return tier
    folder = "/".join(item.nodeid.split("/")[:2])
    if folder in _FOLDERS:
        return _FOLDERS[folder]
    if "cluster" in item.fixturenames:
        return "whole"
    is_on_redis = hasattr(item, "callspec") and item.callspec.params.get("server") == "redis"
    return "redis" if is_on_redis else "test"


def selected(items: list[pytest.Item], tier: str | None) -> list[pytest.Item]:
    """Return the *items* of *tier*, or all items outside the long tiers if *tier* is None."""
    return [item for item in items if (tier_of(item) == tier if tier else tier_of(item) not in LONG)]
