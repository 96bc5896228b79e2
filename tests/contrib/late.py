"""The example project with a task that acks late and hangs in its first attempt."""

import time

import django
from django.tasks import task

from examples.django_tasks import celery_app as app

django.setup()
app.conf.task_acks_late = True


@task(queue_name="pdf", takes_context=True)
def hang_at_first(context):
    if context.attempt == 1:
        time.sleep(600)
    return "done"
