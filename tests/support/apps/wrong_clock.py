"""Change the time of this process and its forks, like on a machine with a wrong clock."""

import time
from datetime import datetime, timedelta

import celery.app.base
import celery.utils.time
import celery.worker.request


def set_off_by(seconds: float) -> None:
    """Shift the wall clock of this process wherever Celery and this package read it, but not monotonic clocks."""
    right_time = time.time
    time.time = lambda: right_time() + seconds

    class Datetime(datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + timedelta(seconds=seconds)

    for module in (celery.app.base, celery.utils.time, celery.worker.request):
        module.datetime = Datetime
