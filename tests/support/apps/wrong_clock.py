"""Makes this process, and those it forks, see another time, as on a machine whose clock is wrong."""

import time
from datetime import datetime, timedelta

import celery.app.base
import celery.utils.time
import celery.worker.request


def set_off_by(seconds: float) -> None:
    """Set the clock of this process off, as far as Celery and we ask for it. Monotonic clocks stay."""
    right_time = time.time
    time.time = lambda: right_time() + seconds

    class Datetime(datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + timedelta(seconds=seconds)

    for module in (celery.app.base, celery.utils.time, celery.worker.request):
        module.datetime = Datetime
