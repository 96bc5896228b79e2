import time

from celery import shared_task


@shared_task(affinity="pdf")
def render(number):
    time.sleep(0.25)  # as if it were work
    return f"invoice {number} as a PDF"
