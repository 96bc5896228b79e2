"""Tests are isolated from the apps and results that other tests leave in the process."""

import gc

from celery import Celery, _state

from celery_affinity.embedded import EmbeddedServer

from .apps import apps_stay_here
from .results_away import forget_results


def test_apps_stay_here_removes_tasks_and_current_app():
    before = _state._tls.current_app
    with apps_stay_here():
        app = Celery("first")

        @app.task(name="shared with all", affinity="pdf")
        def task():
            pass

        assert "shared with all" in Celery("second", set_as_current=False).tasks
        assert _state._tls.current_app is app
    later = Celery("later", set_as_current=False)
    assert "shared with all" not in later.tasks
    assert "celery.chord" in later.tasks, "Celery's tasks remain"
    assert _state._tls.current_app is before


def test_forgotten_results_do_not_reconnect_when_collected(caplog):
    with EmbeddedServer() as server, Celery("away", broker=server.url, backend=server.url) as app:
        results = [app.send_task("any") for _ in range(3)]
        results.append(results)  # a cycle: only the garbage collector deletes it
    forget_results()
    del results
    gc.collect()
    assert "Connection to Redis lost" not in caplog.text
