"""The scenes. Each publishes some jobs and returns their runs by row, such as the city."""

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

from celery.result import AsyncResult

from examples.routes.rules.tasks import Run, app, dispatch, reroute, route, traffic

Rows = dict[str, list[Run]]


def is_ready() -> bool:
    return bool(app.control.ping(timeout=0.2))


def one_at_a_time() -> Rows:
    calls = {"Hamburg": "ABCD", "Bremen": "EF", "Kiel": "GH"}
    return _runs({city: [reroute.delay(city, letter) for letter in letters] for city, letters in calls.items()})


def limit_at_run_time() -> Rows:
    affinity("keys", "set", "city:Hamburg", "2")
    rows = _runs({"Hamburg": [reroute.delay("Hamburg", letter) for letter in "ABCD"]})
    affinity("keys", "reset", "city:Hamburg")
    return rows


def at_a_rate() -> Rows:
    return _runs({"radar": [traffic.delay("radar", letter) for letter in "ABCDEFGH"]})


def in_order() -> Rows:
    return _runs({"truck 7": [dispatch.delay("7", letter, is_lost=letter == "B") for letter in "ABC"]})


def pause() -> Rows:
    affinity("pause", "route", "--reason", "a new map is loaded")
    routes = [route.delay("Hamburg", letter) for letter in "ABC"]
    others = [traffic.delay("camera", letter) for letter in "MNOP"]
    time.sleep(0.5)
    affinity("resume", "route")
    return _runs({"route": routes, "traffic": others})


def affinity(*arguments: str) -> None:
    """Run a `celery affinity` command, like an operator."""
    command = ["celery", "-A", "examples.routes.rules.tasks", "affinity", *arguments]
    print(f"  $ {shlex.join(command)}", flush=True)
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)


def _runs(results: dict[str, list[AsyncResult]]) -> Rows:
    return {name: list(_results(row)) for name, row in results.items()}


def _results(results: Iterable[AsyncResult]) -> Iterable[Run]:
    return (tuple(result.get(timeout=30)) for result in results)


SCENES: dict[str, Callable[[], Rows]] = {
    "exclusive: one at a time for each city, and different cities in parallel": one_at_a_time,
    "a limit, changed at run time: two at a time": limit_at_run_time,
    "rate: at most four per second, after the first four": at_a_rate,
    "keep_order: B fails, and its retry runs before C": in_order,
    "a pause: no route job starts during the pause, but traffic jobs do": pause,
}
