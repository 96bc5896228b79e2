"""What merging changed, beside one run for each change: a table, and sentences that follow from the numbers."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from rich.table import Table

from examples.comparing.figures import percentile, seconds
from examples.routes.measure import MERGED, Job, Run
from examples.routes.sides import LEAST_AGAIN, SIDES
from examples.routes.work import AT_REST, STALE_AFTER_S, cores, flooded

Figure = Callable[[Run], object]


def runs_of(run: Run) -> list[Job]:
    """Return the runs that planned changes."""
    return [job for job in run.jobs.values() if job.changes]


def planned_again(run: Run) -> list[Job]:
    """Return the runs of recurring calls that have planned, in their order."""
    return [job for job in run.of_city(AT_REST) if not job.number and job.planned is not None]


def oldest_s(run: Run) -> float:
    """Return how old, s, the plan of the city that nobody touched ever was: one is as old as what its run read."""
    again = planned_again(run)
    ages = [(new.planned or 0.0) - (old.began or 0.0) for old, new in pairwise(again)]
    return max(ages, default=0.0)


def calls_of(run: Run) -> dict[str, list[Job]]:
    """Return the calls that each run answered, as they came, by the id of the run."""
    calls = defaultdict(list)
    for call, answer in run.answered():
        calls[answer.id].append(call)
    return {run_id: sorted(each, key=lambda call: call.published) for run_id, each in calls.items()}


def told_wrong(run: Run) -> list[Job]:
    """Return the callers whose result is no plan that has their change."""
    return [job for job in run.jobs.values() if job.told is not None and not job.is_in_plan]


def went_first(run: Run, user: Job) -> int:
    """Return how many runs for no user, of other cities, started while the run of *user*'s city might have started."""
    calls = calls_of(run)
    mine = run.runs_by_number()[user.number]
    free_at = user.published
    for other in run.of_city(user.type):  # one after the other
        if other.ended is not None and (other.began or 0.0) < (mine.began or 0.0):
            free_at = max(free_at, other.ended)
    return sum(
        free_at < (other.started or 0.0) < (mine.started or 0.0)
        for other in run.jobs.values()
        if other.type != user.type and all(call.mode != "on_demand" for call in calls.get(other.id, []))
    )


# -- what is said


def table(single: Run, merged: Run) -> Table:
    table = Table(title="What merging changes", title_justify="left", title_style="bold")
    table.add_column("")
    for title in ("one run for\neach change", "calls\nmerged"):
        table.add_column(title, justify="right")
    for name, figure in _rows():
        table.add_row(name, str(figure(single)), str(figure(merged)))
    return table


def _rows() -> Iterator[tuple[str, Figure]]:
    yield "changes", lambda run: f"{len(run.wishes()):,}"
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


def came_within_s(run: Run) -> float:
    return max((job.published - run.began for job in run.wishes()), default=0.0)


def sentences(single: Run, merged: Run) -> list[str]:
    """Return what a person should notice, in plain words; each number is what was measured, better or worse."""
    if not runs_of(merged):
        return []
    return [_few_runs(single, merged), _callers(merged), _cost(single, merged), _users(single, merged), _again(merged)]


def _few_runs(single: Run, merged: Run) -> str:
    runs = len(runs_of(merged))
    most = max(len(merged.of_city(city)) for city in flooded())
    return (
        f"{len(merged.wishes()):,} changes that came within {came_within_s(merged):.1f} s took {runs} runs, "
        f"{most} of a city at most: {len(merged.wishes()) / runs:.0f} changes in a run. "
        f"Not merged, {len(single.wishes())} changes took {len(runs_of(single))}."
    )


def _callers(merged: Run) -> str:
    told = sum(job.told is not None for job in merged.jobs.values())
    return (
        f"Each caller asks for the result of its own call. Callers who got a plan with their change in it: "
        f"{told - len(told_wrong(merged)):,} of {len(merged.wishes()):,}."
    )


def _cost(single: Run, merged: Run) -> str:
    of_a_change = _cpu_s(single) / max(1, len(runs_of(single)))
    in_all = of_a_change * len(merged.wishes())
    return (
        f"The planning took {_cpu_s(merged):.1f} CPU seconds. At {of_a_change:.2f} for each change, as where calls do "
        f"not merge, it would have taken {in_all:.0f}: {in_all / cores():.0f} s of all {cores()} cores here."
    )


def _users(single: Run, merged: Run) -> str:
    users = [call for call, _ in merged.answered() if call.mode == "on_demand"]
    calls = calls_of(merged)
    runs = merged.runs_by_number()
    together = sum(len(calls[runs[user.number].id]) > 1 for user in users)
    first = max((went_first(merged, user) for user in users), default=0)
    ours, others = (_at(run.user_waits(set(flooded())), 50) for run in (merged, single))
    return (
        f"A user's change waits {ours} s (median) until its run begins: users come at any moment, mostly while a run "
        f"of their city is on. Where each change is a run, they come when one has just ended, and wait {others} s. "
        f"{together} of {len(users)} users' changes merged with others that waited, and took them along. While a user "
        f"waited and no run of that city was on, {first} runs of other cities started first, at most."
    )


def _again(merged: Run) -> str:
    return (
        f"Nobody changed {AT_REST}: a recurring call, made when nothing asks for a plan for {STALE_AFTER_S:g} s, had "
        f"it planned {len(planned_again(merged))} times. Its plan was never older than {oldest_s(merged):.1f} s."
    )


def failures(run: Run, requests: int) -> list[str]:
    """Return what must not be: changes that nobody planned, callers who got a plan without their change."""
    found = []
    if missing := run.unfinished(requests):
        found.append(f"{SIDES[run.side]}: changes that were not planned in time: {missing}.")
    if run.side == MERGED and len(planned_again(run)) < LEAST_AGAIN:
        found.append(f"{SIDES[run.side]}: {AT_REST}, which nobody changed, was not planned again and again.")
    if wrong := told_wrong(run):
        first = f"the first is {wrong[0].type}, {wrong[0].about}"
        found.append(f"{SIDES[run.side]}: callers who got no plan that has their change: {len(wrong)}; {first}.")
    return found
