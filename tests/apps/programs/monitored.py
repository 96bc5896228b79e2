"""An app that Flower monitors. The scenario reads and controls it over Flower's HTTP interface."""

import json
import os
import urllib.request

from tests.support.processes import wait_until

from . import hold, make_app, note_run, release, runs

app = make_app("monitored", task_send_sent_event=True, worker_send_task_events=True, task_track_started=True)
FLOWER = os.environ.get("FLOWER_URL", "")


@app.task(bind=True, name="render")
def render(self, path):
    note_run(self, path)
    hold(path)
    return f"{path} rendered"


@app.task(bind=True, name="fail")
def fail(self):
    note_run(self)
    raise ValueError("it fails")


def ask(path, body=None):
    request = urllib.request.Request(FLOWER + path, data=None if body is None else json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.loads(reply.read())


def tasks():
    """Return Flower's entry for each task, by its name and arguments."""
    return {f"{each['name']} {each['args']}": each for each in ask("/api/tasks").values()}


def scenario():
    workers = wait_until(lambda: len(found := ask("/api/workers?refresh=1")) == 2 and found, 60, "Flower sees workers")
    queues = {worker: [queue["name"] for queue in each["active_queues"]] for worker, each in workers.items()}
    applied = ask("/api/task/async-apply/render", {"args": ["a"], "queue": "excel"})
    render.apply_async(("b",), queue="pdf")
    failed = fail.apply_async(queue="pdf")
    failed.get(timeout=30, propagate=False)
    wait_until(lambda: len(runs()) == 3, 30, "all tasks run")
    wait_until(lambda: [each["state"] for each in tasks().values()].count("STARTED") == 2, 30, f"two run: {tasks()}")
    terminated = render.apply_async(("c",), queue="pdf")
    wait_until(lambda: len(runs()) == 4, 30, "the last task runs")
    ask(f"/api/task/revoke/{terminated.id}?terminate=true", {})
    release("a")
    release("b")
    ended = {"SUCCESS", "FAILURE", "REVOKED"}
    wait_until(lambda: {each["state"] for each in tasks().values()} <= ended, 60, f"all have ended: {tasks()}")
    wait_until(lambda: app.AsyncResult(terminated.id).state == "REVOKED", 30, "it is revoked")
    shown = ("name", "args", "state", "result", "exception", "routing_key", "retries")
    return {
        "queues": sorted((worker.partition("@")[0], served) for worker, served in queues.items()),
        "tasks": {
            key: [*(each[field] for field in shown), (each["worker"] or "").partition("@")[0]]
            for key, each in sorted(tasks().items())
        },
        "result": ask(f"/api/task/result/{applied['task-id']}")["result"],
        "waiting": sorted((each["name"], each["messages"]) for each in ask("/api/queues/length")["active_queues"]),
        "runs": sorted(runs()),
    }
