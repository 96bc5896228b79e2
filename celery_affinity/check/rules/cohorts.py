"""Rules about cohorts: what should count over all of them, and counts in each by itself."""

from collections.abc import Iterator

from ..facts import Facts
from ..finding import Finding, listed


def key_in_cohorts(facts: Facts) -> Iterator[Finding]:
    for pattern, tasks in facts.app.shared_keys.items():
        users = listed(f"{task} ({cohort})" for task, cohort in tasks.items())
        yield Finding(
            "key-in-cohorts",
            f"Tasks of several cohorts have keys such as {pattern!r}: {users}. Each cohort counts by itself, so a "
            "limit of 1 lets one job run in each of them.",
            "Put the types of these tasks into one cohort, or give the tasks keys with different names.",
        )


RULES = (key_in_cohorts,)
