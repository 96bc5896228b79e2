"""A Django project whose invoices are rendered by Celery workers of type `pdf`.

celery -A examples.django_app worker -Q pdf -c 1
python -m examples.django_app runserver
curl http://localhost:8000/invoices/7                a user waits for this invoice
curl --request POST http://localhost:8000/nightly    a batch of invoices, rendered later
"""

from .celery import app as celery_app

__all__ = ["celery_app"]
