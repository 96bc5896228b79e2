"""The client: publishes the flood of changes and the users' changes: `python -m examples.routes.publish WORK`."""

import sys
import time
from pathlib import Path
from typing import Any

from celery.result import AsyncResult

from examples.comparing import record
from examples.routes import work
from examples.routes.app import FOLDER, SIDE
from examples.routes.measure import Run
from examples.routes.tasks import plan_city

#: Side -> options of all calls. The task merges its calls; `merge_key=False` switches this off for a call.
CALL_OPTIONS: dict[str, dict[str, Any]] = {"affinity": {"merge_key": False}}

#: Side -> options of users' calls. Stock Celery has no `on_demand`; a separate queue is the nearest equivalent.
USER_OPTIONS: dict[str, dict[str, Any]] = {
    "affinity": {"on_demand": True},
    "merged": {"on_demand": True},
    "lock": {"queue": "users"},
}


def main() -> None:
    requests = work.load(Path(sys.argv[1]))
    if SIDE == "merged":
        stream(requests)
    else:
        flood(requests)


def flood(requests: list[work.Request]) -> None:
    """Publish all changes of the flood, and each user's change when the given number of them has been planned."""
    for request in requests:
        if not request.after:
            publish(request)
    users = [request for request in requests if request.after]
    run = Run(SIDE, FOLDER)
    while users:
        run.follow()
        due = [user for user in users if run.planned(None if user.is_at_rest else user.city) >= user.after]
        for request in due:
            publish(request)
            users.remove(request)
        time.sleep(0.02)


def stream(requests: list[work.Request]) -> None:
    """Publish each change at its time, and record whether each caller gets a plan with its change."""
    started = time.monotonic()
    results: list[tuple[int, AsyncResult]] = []
    for request in requests:
        time.sleep(max(0.0, started + request.at_s - time.monotonic()))
        results.append((request.change["number"], publish(request)))
    for number, result in results:
        book = result.get(propagate=False)
        record.write("received", id=result.id, is_in_plan=result.successful() and number in book["changes"])


def publish(request: work.Request) -> AsyncResult:
    options = CALL_OPTIONS.get(SIDE, {}) | (USER_OPTIONS.get(SIDE, {}) if request.mode == "on_demand" else {})
    # The header is only for the report, which needs the mode of each call on stock Celery, too.
    return plan_city.apply_async((request.city, [request.change]), headers={"mode": request.mode}, **options)


if __name__ == "__main__":
    main()
