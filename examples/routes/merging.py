"""Compares merged calls with one run per change: a table, and sentences derived from the numbers."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from rich.table import Table

from examples.comparing.figures import percentile, seconds
from examples.routes.measure import MERGED, Job, Run
from examples.routes.sides import MIN_REPLANS, SIDES
from examples.routes.work import AT_REST, STALE_AFTER_S, cores, flooded

Figure = Callable[[Run], object]


def runs_of(run: Run) -> list[Job]:
    """Return the runs that planned changes."""
    return [job for job in run.jobs.values() if job.changes]


def recurring_runs(run: Run) -> list[Job]:
    """Return the completed runs of the recurring call, in order."""
    return [job for job in run.of_city(AT_REST) if not job.number and job.planned is not None]


def oldest_s(run: Run) -> float:
    """Return the greatest age of AT_REST's plan, in seconds. A plan's age starts when its run reads the book."""
    runs = recurring_runs(run)
    ages = [(new.planned or 0.0) - (old.began or 0.0) for old, new in pairwise(runs)]
    return max(ages, default=0.0)


def calls_of(run: Run) -> dict[str, list[Job]]:
    """Return the calls that each run answered, in order of publish, by the id of the run."""
    calls = defaultdict(list)
    for call, answer in run.answered():
        calls[answer.id].append(call)
    return {run_id: sorted(merged, key=lambda call: call.published) for run_id, merged in calls.items()}


def wrong_results(run: Run) -> list[Job]:
    """Return the callers whose result is not a plan with their change."""
    return [job for job in run.jobs.values() if job.received is not None and not job.is_in_plan]


def started_before(run: Run, user: Job) -> int:
    """Return the number of runs in other cities that started before the user's run, although it could have started.

    Only runs without a user's change count.
    """
    calls = calls_of(run)
    users_run = run.runs_by_number()[user.number]
    free_at = user.published
    for other in run.of_city(user.type):  # no two of them overlap
        if other.ended is not None and (other.began or 0.0) < (users_run.began or 0.0):
            free_at = max(free_at, other.ended)
    return sum(
        free_at < (other.started or 0.0) < (users_run.started or 0.0)
        for other in run.jobs.values()
        if other.type != user.type and all(call.mode != "on_demand" for call in calls.get(other.id, []))
    )


# -- the report


def table(single: Run, merged: Run) -> Table:
    table = Table(title="The effect of merging", title_justify="left", title_style="bold")
    table.add_column("")
    for title in ("one run\nper change", "calls\nmerged"):
        table.add_column(title, justify="right")
    for name, figure in _rows():
        table.add_row(name, str(figure(single)), str(figure(merged)))
    return table


def _rows() -> Iterator[tuple[str, Figure]]:
    yield "changes", lambda run: f"{len(run.change_calls()):,}"
    yield "runs that planned a city", lambda run: f"{len(runs_of(run)):,}"
    yield "CPU seconds of planning", lambda run: f"{_cpu_s(run):.1f}"
    yield "a change is in a plan after, median, s", lambda run: _at(run.plan_waits(), 50)
    yield "a change is in a plan after, longest, s", lambda run: _at(run.plan_waits(), 100)
    yield "the last change is in a plan after, s", lambda run: f"{_all_planned_s(run):.1f}"
    yield "users wait, median, s", lambda run: _at(run.user_waits(set(flooded())), 50)
    yield "users wait, longest, s", lambda run: _at(run.user_waits(set(flooded())), 100)


def _at(values: list[float], percent: int) -> str:
    return seconds(percentile(values, percent)) if values else "-"


def _cpu_s(run: Run) -> float:
    return sum(job.cpu_s for job in runs_of(run))


def _all_planned_s(run: Run) -> float:
    return max((job.planned - run.began for job in runs_of(run) if job.planned is not None), default=0.0)


def published_within_s(run: Run) -> float:
    return max((job.published - run.began for job in run.change_calls()), default=0.0)


def sentences(single: Run, merged: Run) -> list[str]:
    """Return the main results as sentences, also where merging is worse."""
    if not runs_of(merged):
        return []
    return [
        _few_runs(single, merged),
        _callers(merged),
        _cost(single, merged),
        _users(single, merged),
        _recurring(merged),
    ]


def _few_runs(single: Run, merged: Run) -> str:
    runs = len(runs_of(merged))
    max_runs = max(len(merged.of_city(city)) for city in flooded())
    return (
        f"{len(merged.change_calls()):,} changes within {published_within_s(merged):.1f} s took {runs} runs, at most "
        f"{max_runs} per city: {len(merged.change_calls()) / runs:.0f} changes per run. "
        f"Without merging, {len(single.change_calls())} changes took {len(runs_of(single))} runs."
    )


def _callers(merged: Run) -> str:
    received = sum(job.received is not None for job in merged.jobs.values())
    return (
        f"Each caller reads the result of its own call. Callers that got a plan with their change: "
        f"{received - len(wrong_results(merged)):,} of {len(merged.change_calls()):,}."
    )


def _cost(single: Run, merged: Run) -> str:
    cost_s = _cpu_s(single) / max(1, len(runs_of(single)))
    total_s = cost_s * len(merged.change_calls())
    return (
        f"The planning took {_cpu_s(merged):.1f} CPU seconds. Without merging, at {cost_s:.2f} CPU seconds per change, "
        f"it would have taken {total_s:.0f} CPU seconds: {total_s / cores():.0f} s on all {cores()} cores here."
    )


def _users(single: Run, merged: Run) -> str:
    users = [call for call, _ in merged.answered() if call.mode == "on_demand"]
    calls = calls_of(merged)
    runs = merged.runs_by_number()
    merged_users = sum(len(calls[runs[user.number].id]) > 1 for user in users)
    max_earlier = max((started_before(merged, user) for user in users), default=0)
    wait, single_wait = (_at(run.user_waits(set(flooded())), 50) for run in (merged, single))
    return (
        f"A user's change waits {wait} s (median) for its run, mostly because it is published during another run of "
        f"its city. With one run per change, it is published when a run has just ended, and waits {single_wait} s. "
        f"{merged_users} of {len(users)} users' changes merged with other waiting changes, which then ran with them. "
        f"While a user waited for an idle city, at most {max_earlier} runs of other cities started first."
    )


def _recurring(merged: Run) -> str:
    return (
        f"{AT_REST} had no changes. A recurring call, published {STALE_AFTER_S:g} s after the last plan, planned it "
        f"{len(recurring_runs(merged))} times. Its plan was never older than {oldest_s(merged):.1f} s."
    )


def failures(run: Run, requests: int) -> list[str]:
    """Return the failures as sentences: unplanned changes, and callers that got a plan without their change."""
    sentences = []
    if missing := run.unfinished(requests):
        sentences.append(f"{SIDES[run.side]}: changes that were not planned in time: {missing}.")
    if run.side == MERGED and len(recurring_runs(run)) < MIN_REPLANS:
        sentences.append(f"{SIDES[run.side]}: the recurring call did not plan {AT_REST} {MIN_REPLANS} times.")
    if wrong := wrong_results(run):
        first = f"the first is {wrong[0].type}, {wrong[0].about}"
        sentences.append(f"{SIDES[run.side]}: callers that got no plan with their change: {len(wrong)}; {first}.")
    return sentences
