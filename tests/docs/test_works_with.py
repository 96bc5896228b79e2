"""The page on applications and plugins names the tested versions, and its examples work."""

import json
import re
import sys

from celery import Celery
from celery.app.routes import prepare

import celery_affinity

from ..support.apps import app_for
from ..support.pages import blocks
from ..support.processes import ROOT

PAGE = "docs/reference/works-with.md"
TEXT = (ROOT / PAGE).read_text()

#: Packages that the tests need, and that are neither programs nor plugins.
HELPERS = {"psycopg2-binary", "psutil", "sqlalchemy", "asyncpg", "cachetools", "rich", "flask-caching"}
HELPERS |= {"pytest", "pytest-timeout", "apache-airflow-providers-standard", "opentelemetry-sdk"}


def pinned():
    for file in (ROOT / "tests/apps/requirements").glob("*.txt"):
        for line in file.read_text().splitlines():
            name, _, version = line.partition("#")[0].strip().partition("==")
            if version and name not in HELPERS:
                yield f"{name} {version}"


def test_page_has_the_pinned_versions_of_the_scenarios():
    versions = TEXT.partition("## Versions")[2]
    assert [each for each in pinned() if each not in versions] == []


def test_each_plugin_of_the_scenarios_has_a_row():
    plugins = TEXT.partition("## Plugins")[2].partition("## Versions")[0].lower()
    prefixes = ("celery-", "ddtrace", "django-", "flower", "opentelemetry", "sentry", "tenant")
    names = [each.partition(" ")[0] for each in pinned() if each.startswith(prefixes)]
    assert [name for name in names if name.removesuffix("-sdk") not in plugins] == []


def extra_config(block):
    return json.loads(re.search(r"EXTRA_CELERY_CONFIG='(.*)'", blocks(PAGE)[block]).group(1))


def test_airflow_router_reads_the_weight_of_each_call(valkey, redis_client, tmp_path, monkeypatch):
    assert extra_config("airflow") == {"broker_transport": "celery_affinity:Transport"}
    (tmp_path / "shop_routes.py").write_text(blocks(PAGE)["shop_routes.py"])
    monkeypatch.syspath_prepend(tmp_path)
    app = app_for(valkey.url, **extra_config("airflow-routes"))

    @app.task(name="execute_workload")
    def execute_workload(input): ...

    @app.task(name="other")
    def other(): ...

    for weight, priority in ((None, 1), (4, 4), (99, 10)):
        message = json.dumps({"ti": {"priority_weight": weight}})
        result = execute_workload.apply_async(args=(message,), queue="pdf")
        assert celery_affinity.jobs(app).get(result.id).priority == priority
    assert celery_affinity.jobs(app).get(other.apply_async(queue="pdf").id).priority == 0
    assert callable(prepare(extra_config("airflow-routes")["task_routes"])[0])
    sys.modules.pop("shop_routes")


def test_django_settings_name_the_backend_of_the_package():
    names = {}
    exec(blocks(PAGE)["TASKS"], names)
    module, _, name = names["TASKS"]["default"]["BACKEND"].rpartition(".")
    assert f"class {name}(" in (ROOT / f"{module.replace('.', '/')}.py").read_text()


def test_settings_module_keeps_the_settings_of_the_application(tmp_path, monkeypatch):
    """The application here is a stand-in for pretix."""
    (tmp_path / "pretix").mkdir()
    (tmp_path / "pretix/__init__.py").touch()
    (tmp_path / "pretix/settings.py").write_text(
        "CELERY_BROKER_URL = 'redis://one'\nCELERY_TASK_ALWAYS_EAGER = False\n"
    )
    (tmp_path / "pretix_settings.py").write_text(blocks(PAGE)["pretix_settings.py"])
    monkeypatch.syspath_prepend(tmp_path)
    app = Celery("pretix", set_as_current=False)
    app.config_from_object("pretix_settings", namespace="CELERY")
    assert app.connection_for_write().as_uri() == "redis://one//"
    assert app.conf.broker_transport == "celery_affinity:Transport"
    for name in ("pretix", "pretix.settings", "pretix_settings"):
        sys.modules.pop(name)
