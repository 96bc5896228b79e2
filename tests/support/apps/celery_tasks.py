"""Tasks for the workers of pytest-celery's setups, in addition to its own; it copies this module into them."""

import time

from celery import shared_task


@shared_task(bind=True, acks_late=True)
def slow_at_first(self):
    """Hang in the first run, and return immediately in the next."""
    if not self.request.delivery_info["redelivered"]:
        time.sleep(600)
    return "again"


@shared_task(bind=True, affinity="pdf")
def pdf(self):
    return self.request.hostname


@shared_task(bind=True, affinity="excel")
def excel(self):
    return self.request.hostname
