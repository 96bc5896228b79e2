"""Findings about due times: options without an effect, unknown run times, and waits that no due time can avoid."""

from collections.abc import Iterator

from ..options.call_options import resolve
from ..options.due_times import WITHIN
from .facts import AppFacts, FleetFacts
from .finding import Level, Problem, Problems, app_of, finding, fleet_of, join_names


def _due_within(app: AppFacts) -> Iterator[tuple[str, float]]:
    """Yield each task and each ``beat_schedule`` entry with `start_within`, and its seconds."""
    refused = {complaint.where for complaint in app.entry_complaints}
    of_tasks = ((f"task {name}", resolve(WITHIN, sources)) for name, _, sources in app.sources)
    entries = ((where, options.get(WITHIN)) for where, options in app.beat_options() if where not in refused)
    yield from ((where, within_s) for where, within_s in (*of_tasks, *entries) if within_s is not None)


def _target_wait_s(fleet: FleetFacts) -> float:
    values = {setting.name: setting.value for setting in fleet.settings}
    target_s = values.get("target_wait", fleet.app.settings.target_wait)
    return float(target_s) if isinstance(target_s, int | float) else fleet.app.settings.target_wait


@finding("due-unscheduled", Level.WARNING, app_of)
def due_unscheduled(app: AppFacts) -> Problems:
    """A task has `start_within`, but its queue is not scheduled (`affinity_queues`), so nothing orders its jobs."""
    for name, task, sources in app.sources:
        if resolve(WITHIN, sources) is not None:
            queue = app.type_of_task(name, task)
            if queue and not app.settings.schedules(queue):
                yield Problem(
                    f"Jobs of task {name} have start_within=, which has no effect: their queue {queue!r} is not "
                    "scheduled (affinity_queues).",
                    "Add the queue to affinity_queues, or remove the option.",
                )


@finding("due-too-late", Level.NOTE, fleet_of)
def due_too_late(fleet: FleetFacts) -> Problems:
    """A task or a `beat_schedule` entry has a `start_within` of at least `affinity_target_wait`. Its jobs are ordered
    like jobs without a due time.
    """
    target_s = _target_wait_s(fleet)
    places = [f"{where} ({within_s:g} s)" for where, within_s in _due_within(fleet.app) if within_s >= target_s]
    if places:
        yield Problem(
            f"start_within= has no effect on the order of jobs of {join_names(places, 3)}: "
            "jobs without a due time are due no later, "
            f"after {target_s:g} s (affinity_target_wait).",
            "Raise affinity_target_wait above these times, or lower start_within=.",
        )


@finding("stretch-without-run-times", Level.WARNING, fleet_of, in_cohorts=True)
def stretch_without_run_times(fleet: FleetFacts) -> Problems:
    """`affinity_stretch` is set, but no run time is known: no worker of this release has ended a job. Run times are
    learned from then on.
    """
    stretch = {setting.name: setting.value for setting in fleet.settings}.get("stretch")
    if isinstance(stretch, int | float) and stretch > 0 and fleet.run_times == 0:
        yield Problem(
            f"affinity_stretch is {stretch:g}, but no run time is known yet: all jobs are ordered by their age.",
            "Wait until some jobs have succeeded; `celery -A ... affinity run-times` shows what is known. If it stays "
            "empty, upgrade the workers.",
        )


@finding("due-behind-older", Level.WARNING, fleet_of, in_cohorts=True)
def waits_beyond_target(fleet: FleetFacts) -> Problems:
    """Some jobs of a type waited longer than `affinity_target_wait` (p99 of the last 5 to 10 minutes), and due times
    are used. A job with a due time does not overtake jobs that have waited for longer.
    """
    target_s = _target_wait_s(fleet)
    is_used = fleet.due_jobs > 0 or any(True for _ in _due_within(fleet.app))
    for type_, wait_s in sorted(fleet.waits_p99_s.items()):
        if is_used and 0 < target_s < wait_s:
            yield Problem(
                f"1 % of the jobs of type {type_!r} that started in the last minutes waited more than {wait_s:,.0f} s, "
                f"longer than affinity_target_wait ({target_s:g} s): a job with a due time does not overtake these.",
                f"Set affinity_target_wait to {_rounded_up(wait_s):g} or more, or start more workers.",
            )


def _rounded_up(seconds: float) -> int:
    """Return a whole number of seconds above *seconds* that is a multiple of 10."""
    return (int(seconds) // 10 + 1) * 10
