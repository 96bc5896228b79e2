"""The table of the main results in docs/explanation/performance.md."""

from collections.abc import Sequence

from .report import Outcome, as_markdown

#: Goal -> description for users.
DESCRIPTIONS = {
    "drain, threads, default settings": "empty tasks a second, 8 threads",
    "drain, prefork, default settings": "empty tasks a second, prefork, 2 processes",
    "drain, solo, default settings": "empty tasks a second, solo",
    "drain, prefork, default settings, late acks": "empty tasks a second, prefork, late acks",
    "drain, prefork, default settings, 1 ms away": "empty tasks a second, prefork, late acks, 1 ms away",
    "drain, prefork 2, one job per slot": "empty tasks a second, prefork, late acks, `affinity_lookahead = 0`",
    "slots used by tasks of 10 ms, prefork 2, default settings": "time that slots work, tasks of 10 ms, prefork",
    "slots used by waits of 100 ms, 10 threads, defaults": "time that slots work, waits of 100 ms, 10 threads",
    "publish, delay": "`delay` calls a second",
    "publish, publish_many": "calls a second by `publish_many`",
    "idle latency, prefork, p50": "time from `delay` to the task's first line, idle worker, prefork",
    "server CPU, publish to ack, solo": "the server's CPU time for a task, without a look-ahead",
    "memory of a pending job, valkey": "the server's memory for a job that waits",
    "tasks lost in 50 kills, prefork": "tasks lost in 50 kills (`kill -9`) of a busy worker",
}


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a table of the measured ones of these goals, as Markdown."""
    by_name = {outcome.goal.name: outcome for outcome in outcomes}
    rows = [
        (description, _shown(by_name[name]), by_name[name].goal.note)
        for name, description in DESCRIPTIONS.items()
        if by_name[name].value is not None
    ]
    return as_markdown([("what", "stock Celery = 1", "stock Celery runs with"), *rows])


def _shown(outcome: Outcome) -> str:
    return f"{outcome.value:.2g}" if outcome.goal.unit == "x" else outcome.shown
