"""A Django 6 project whose tasks use Django's own `task` decorator and run on Celery workers.

celery -A examples.django_tasks worker -Q pdf -c 1
python -m examples.django_tasks runserver
curl --request POST http://localhost:8000/invoices/7     the response has the id of the result
curl http://localhost:8000/results/ID
"""

from .celery import app as celery_app

__all__ = ["celery_app"]
