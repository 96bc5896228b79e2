"""A Django project of django-tenants: each tenant has a PostgreSQL schema, and a task runs in its caller's schema."""

import os

import django
from django.conf import settings

if not settings.configured:
    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "django_tenants", "tests.apps.programs.tenants"],
        DATABASES={
            "default": {
                "ENGINE": "django_tenants.postgresql_backend",
                "HOST": os.environ["POSTGRES_HOST"],
                "PORT": os.environ["POSTGRES_PORT"],
                "NAME": os.environ["DATABASE"],
                "USER": "postgres",
            }
        },
        DATABASE_ROUTERS=["django_tenants.routers.TenantSyncRouter"],
        SHARED_APPS=["django.contrib.contenttypes", "django_tenants", "tests.apps.programs.tenants"],
        TENANT_APPS=["django.contrib.contenttypes"],
        TENANT_MODEL="tenants.Customer",
        TENANT_DOMAIN_MODEL="tenants.Domain",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        MIGRATION_MODULES={},
        USE_TZ=True,
    )
    django.setup()

from tenant_schemas_celery.app import CeleryApp

from .. import make_app, note_run, runs

app = make_app("tenants", cls=CeleryApp)


@app.task(bind=True, name="render", max_retries=1)
def render(self, path, retries=0):
    from django.db import connection

    note_run(self, path, self.request.retries, connection.schema_name)
    if self.request.retries < retries:
        raise self.retry(countdown=0.1)
    if path == "parent":
        render.apply_async(("child",), queue="excel")
    return connection.schema_name


def migrate():
    from django.core.management import call_command
    from django_tenants.utils import get_tenant_model

    call_command("migrate_schemas", shared=True, run_syncdb=True, verbosity=0)
    for name in ("red", "blue"):
        get_tenant_model().objects.create(schema_name=name, name=name)


def scenario():
    from celery import chain
    from django_tenants.utils import schema_context

    from tests.support.processes import wait_until

    ends = {}
    for schema in ("public", "red", "blue"):
        with schema_context(schema):
            calls = [
                render.apply_async(("a",), queue="pdf"),
                render.apply_async(("again", 1), queue="excel"),
                render.apply_async(("parent",), queue="pdf"),
                chain(render.si("1").set(queue="pdf"), render.si("2").set(queue="excel")).apply_async(),
            ]
        ends[schema] = [each.get(timeout=60) for each in calls]
    wait_until(lambda: len(runs()) == 21, 60, f"the children run: {runs()}")
    return {"ends": ends, "runs": sorted(runs())}
