"""The tests themselves: no test finds what another one left in the process."""

import gc

from celery import Celery, _state

from celery_affinity.embedded import EmbeddedServer

from .apps import apps_stay_here
from .results_away import forget_results


def test_tasks_and_the_current_app_of_one_test_are_unknown_to_the_next():
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
    assert "celery.chord" in later.tasks, "Celery's own stay"
    assert _state._tls.current_app is before


def test_results_whose_server_has_ended_hold_up_no_later_test(caplog):
    with EmbeddedServer() as server, Celery("away", broker=server.url, backend=server.url) as app:
        results = [app.send_task("any") for _ in range(3)]
        results.append(results)  # a cycle: only the garbage collector throws it away
    forget_results()
    del results
    gc.collect()
    assert "Connection to Redis lost" not in caplog.text
