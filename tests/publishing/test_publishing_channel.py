"""The path of a call through the packages: from Celery's method to the server function, without returning."""

import sys
from itertools import groupby
from pathlib import Path

import celery_affinity

PACKAGE = str(Path(celery_affinity.__file__).parent)

#: Passive packages: every package may call them.
ASKED = {"options", "schema", "settings", "policy", "broker", "lua", "clock.py", "errors.py", "log_limit.py"}


def rooms_of(call):
    """Return the packages whose functions *call* runs, in order, without the packages in `ASKED`."""
    files = []
    sys.setprofile(lambda frame, event, _: event == "call" and files.append(frame.f_code.co_filename))
    try:
        call()
    finally:
        sys.setprofile(None)
    rooms = [Path(file).relative_to(PACKAGE).parts[0] for file in files if file.startswith(PACKAGE)]
    return [room for room, _ in groupby(room for room in rooms if room not in ASKED)]


def test_publish_moves_between_few_packages(app):
    @app.task(shared=False, affinity="pdf")
    def render(number):
        return number

    render.delay(1)  # opens the connection, declares the queue, and warns that no worker serves the type
    rooms = rooms_of(lambda: render.apply_async((2,), on_demand=True, exclusive="one", countdown=1))
    assert rooms[0] == "publishing"
    assert rooms[-1] == "scheduler"
    assert len(rooms) <= 7, rooms
    assert rooms_of(lambda: render.delay(3))[: len(rooms)] == rooms
