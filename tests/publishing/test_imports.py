"""Modules that a process loads: an import of an app's tasks loads only the modules for call options."""

import subprocess
import sys

import pytest

import celery_affinity

_LOADED = "print(*sorted(name for name in sys.modules if name.startswith(('celery_affinity', 'redis'))))"

#: Modules of the worker package that every process loads.
LIGHT = ["celery_affinity.worker.startup"]


def loaded(code):
    done = subprocess.run([sys.executable, "-c", f"import sys; {code}; {_LOADED}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def rooms(names):
    return {name.split(".")[1] for name in names if name.startswith("celery_affinity.")}


def test_import_loads_neither_redis_nor_worker_modules():
    names = loaded("import celery_affinity")
    assert rooms(names) == {
        *(
            "backends",
            "clock",
            "errors",
            "log_limit",
            "options",
            "policy",
            "publishing",
            "schema",
            "settings",
            "worker",
        )
    }
    assert [name for name in names if "worker." in name] == LIGHT
    assert "redis" not in names


def test_producer_loads_no_worker_and_report_modules():
    names = loaded("import celery_affinity; celery_affinity.Transport")
    assert not rooms(names) & {"reports", "admin", "liveness", "check", "cli", "web"}
    assert [name for name in names if "worker." in name] == LIGHT


def test_celerys_commands_load_no_module_of_this_package():
    plugins = (
        "from importlib.metadata import entry_points; [each.load() for each in entry_points(group='celery.commands')]"
    )
    names = loaded(f"import celery.bin.celery; {plugins}")
    assert "celery_affinity.cli" in names
    assert [name for name in names if name.startswith("celery_affinity.cli.")] == ["celery_affinity.cli.groups"]
    assert not [name for name in names if name.startswith("celery_affinity.reports.")], "their names are enough"
    assert not rooms(names) & {"admin", "liveness", "leases", "dispatcher", "web"}


def test_every_public_name_exists(subtests):
    for name in celery_affinity.__all__:
        with subtests.test(str(name)):
            assert loaded(f"from celery_affinity import {name} as found; assert found is not None")


def test_unknown_name_raises_the_usual_attribute_error():
    with pytest.raises(AttributeError, match="module 'celery_affinity' has no attribute 'Transprt'"):
        celery_affinity.Transprt  # noqa: B018
    assert {"Transport", "jobs", "__version__"} <= set(dir(celery_affinity))
