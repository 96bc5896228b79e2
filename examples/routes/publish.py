"""The client: a flood of changes, and users who ask meanwhile: `python -m examples.routes.publish WORK`."""

import sys
import time
from pathlib import Path
from typing import Any

from examples.routes import work
from examples.routes.app import FOLDER, SIDE
from examples.routes.measure import Run
from examples.routes.tasks import plan_city

#: A user waits for the new tours. Stock Celery has no such word; a queue of their own is what it can have.
USER: dict[str, dict[str, Any]] = {"affinity": {"on_demand": True}, "stock": {}, "lock": {"queue": "users"}}


def main() -> None:
    requests = work.load(Path(sys.argv[1]))
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


def publish(request: work.Request) -> None:
    options = USER[SIDE] if request.mode == "on_demand" else {}
    # The header is for the figures alone: on stock Celery too they must tell the modes apart.
    plan_city.apply_async((request.city, request.change), headers={"mode": request.mode}, **options)


if __name__ == "__main__":
    main()
