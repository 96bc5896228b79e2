"""Events of merged calls from real workers: a monitor such as Flower shows the end of each caller."""

import json
from contextlib import contextmanager, suppress

import pytest
from celery.events.state import State

from ..support.fleet import POOLS_IN_TIME
from ..support.merging import SOON_S
from ..support.processes import wait_until


class Monitor:
    """A task monitor such as Flower.

    `tasks` maps task ids to their state. `merged_into` lists the event types of each caller, with the id of its run.
    """

    def __init__(self, app):
        self._state, self.merged_into = State(), {}
        self._receiver = app.events.Receiver(app.connection_for_read(), handlers={"*": self._hear})
        self.tasks = self._state.tasks

    def _hear(self, event):
        self._state.event(event)
        if "merged_into" in event:
            self.merged_into.setdefault(event["uuid"], []).append((event["type"], event["merged_into"]))

    @contextmanager
    def listening(self):
        with self._receiver.connection, self._receiver.consumer_context(wakeup=False) as (self._connection, *_):
            self.wait(lambda: self._state.workers, "it hears of a worker")
            yield self

    def wait(self, condition, what):
        wait_until(lambda: self._has_heard() and condition(), SOON_S, what)

    def _has_heard(self):
        with suppress(TimeoutError):
            self._connection.drain_events(timeout=0.05)
        return True

    def states(self, results):
        return {each.id: self.tasks[each.id].state for each in results if each.id in self.tasks}


@pytest.mark.parametrize("pool", POOLS_IN_TIME)
def test_monitor_sees_the_end_of_each_caller(merging, pool):
    results = [merging.task("fold").delay("HH", [n]) for n in range(3)]
    failures = [merging.task("fails").delay("HH", n) for n in range(2)]
    merging.start(pool, extra=["-E"])
    with Monitor(merging.app).listening() as monitor:
        merging.go()
        ends = dict.fromkeys([each.id for each in results], "SUCCESS") | dict.fromkeys(
            [each.id for each in failures], "FAILURE"
        )
        monitor.wait(lambda: monitor.states([*results, *failures]) == ends, "all ends are heard")
    assert {monitor.tasks[each.id].name for each in results} == {"fold"}
    assert {monitor.tasks[each.id].result for each in results} == {"[0, 1, 2]"}
    starts = [("task-received", results[0].id), ("task-started", results[0].id)]
    assert monitor.merged_into[results[1].id] == [*starts, ("task-succeeded", results[0].id)]
    assert results[0].id not in monitor.merged_into
    assert [kind for kind, _ in monitor.merged_into[failures[1].id]][2:] == ["task-failed"]


def test_monitor_sees_ends_reported_by_the_dispatcher(merging):
    results = [merging.task("dies").delay("HH") for _ in range(3)]
    merging.start(extra=["-E"])
    with Monitor(merging.app).listening() as monitor:
        merging.go()
        ends = {each.id: "FAILURE" for each in results}
        monitor.wait(lambda: monitor.states(results) == ends, "all ends are heard")


def test_worker_without_events_sends_none_for_callers(merging):
    results = [merging.task("fold").delay("HH", [n]) for n in range(3)]
    merging.start(CONF=json.dumps({"worker_send_task_events": False}))
    with Monitor(merging.app).listening() as monitor:
        merging.go()
        assert [each.get(timeout=SOON_S) for each in results] == [[0, 1, 2]] * 3
        merging.leaves_nothing()
        monitor.wait(lambda: True, "no more is heard")
    assert not monitor.tasks
