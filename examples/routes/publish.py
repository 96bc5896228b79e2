"""The client: changes, and users who ask meanwhile: `python -m examples.routes.publish WORK`."""

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

#: The task merges its calls. Where each is to be a run of its own, the call says so.
ALL: dict[str, dict[str, Any]] = {"affinity": {"merge_key": False}}

#: A user waits for the new tours. Stock Celery has no such word; a queue of their own is what it can have.
USER: dict[str, dict[str, Any]] = {
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
    """Publish all changes of the flood at once, and those of users when so much of it has been planned."""
    for request in requests:
        if not request.after:
            publish(request)
    users = [request for request in requests if request.after]
    run = Run(SIDE, FOLDER)
    while users:
        run.follow()
        due = [each for each in users if run.planned(None if each.is_at_rest else each.city) >= each.after]
        for request in due:
            publish(request)
            users.remove(request)
        time.sleep(0.02)


def stream(requests: list[work.Request]) -> None:
    """Publish each change at its time, and see whether each caller gets a plan that has its change."""
    began = time.monotonic()
    asked: list[tuple[int, AsyncResult]] = []
    for request in requests:
        time.sleep(max(0.0, began + request.at_s - time.monotonic()))
        asked.append((request.change["number"], publish(request)))
    for number, result in asked:
        book = result.get(propagate=False)
        record.write("told", id=result.id, is_in_plan=result.successful() and number in book["changes"])


def publish(request: work.Request) -> AsyncResult:
    options = ALL.get(SIDE, {}) | (USER.get(SIDE, {}) if request.mode == "on_demand" else {})
    # The header is for the numbers alone: on stock Celery too they must tell the modes apart.
    return plan_city.apply_async((request.city, [request.change]), headers={"mode": request.mode}, **options)


if __name__ == "__main__":
    main()
