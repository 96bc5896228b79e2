"""The scenes: each publishes some jobs, and returns their runs by the name of their row."""

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
    return _runs({city: [reroute.delay(city, sign) for sign in signs] for city, signs in calls.items()})


def a_limit_at_run_time() -> Rows:
    affinity("keys", "set", "city:Hamburg", "2")
    rows = _runs({"Hamburg": [reroute.delay("Hamburg", sign) for sign in "ABCD"]})
    affinity("keys", "reset", "city:Hamburg")
    return rows


def at_a_rate() -> Rows:
    return _runs({"radar": [traffic.delay("radar", sign) for sign in "ABCDEFGH"]})


def in_order() -> Rows:
    return _runs({"truck 7": [dispatch.delay("7", sign, is_lost=sign == "B") for sign in "ABC"]})


def not_for_a_while() -> Rows:
    affinity("pause", "route", "--reason", "a new map is loaded")
    routes = [route.delay("Hamburg", sign) for sign in "ABC"]
    others = [traffic.delay("camera", sign) for sign in "MNOP"]
    time.sleep(0.5)
    affinity("resume", "route")
    return _runs({"route": routes, "traffic": others})


def affinity(*words: str) -> None:
    """Run a command, as a person would."""
    command = ["celery", "-A", "examples.routes.rules.tasks", "affinity", *words]
    print(f"  $ {shlex.join(command)}", flush=True)
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)


def _runs(results: dict[str, list[AsyncResult]]) -> Rows:
    return {name: list(_results(each)) for name, each in results.items()}


def _results(results: Iterable[AsyncResult]) -> Iterable[Run]:
    return (tuple(result.get(timeout=30)) for result in results)


SCENES: dict[str, Callable[[], Rows]] = {
    "exclusive: one at a time for each city, and the cities beside each other": one_at_a_time,
    "a limit, changed at run time: two at a time": a_limit_at_run_time,
    "rate: four a second at most, after the first four": at_a_rate,
    "keep_order: B is lost, and sent again before C": in_order,
    "a pause: no route starts before it is over, and the traffic goes on": not_for_a_while,
}
