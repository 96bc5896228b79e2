"""Three apps in one process; a worker runs the first. The last app is the current app wherever no code sets another."""

import os
import signal
import threading

from . import new_app

app = new_app("first", affinity_task_types={"far": "of-first"})
second = new_app("second", affinity_task_types={"far": "of-second"}, affinity_priority_order="lower-first")
third = new_app("third", affinity_queues=["nothing"], task_default_queue="lists-of-third")


@app.task(name="child", affinity="index", shared=False)
def child():
    pass


def _publish(headers: object) -> None:
    for each in (app, second, third):
        each.send_task("far", headers=headers)
    child.apply_async(headers=headers)


@app.task(name="parent", bind=True, affinity="pdf", shared=False)
def parent(self):
    """Publish for all apps, here and in a thread; return the headers."""
    _publish(self.request.headers)
    thread = threading.Thread(target=_publish, args=(self.request.headers,))
    thread.start()
    thread.join()
    return self.request.headers


def _seen(request: object) -> dict[str, object]:
    kept = {"queue": request.delivery_info["routing_key"], **request.properties.get("celery_affinity", {})}
    return {"headers": request.headers, "kept": kept, "retries": request.retries}


@app.task(name="retrying", bind=True, affinity="pdf", shared=False)
def retrying(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return _seen(self.request)


@app.task(name="failing", bind=True, affinity="pdf", autoretry_for=(ValueError,), default_retry_delay=0, shared=False)
def failing(self):
    if not self.request.retries:
        raise ValueError
    return _seen(self.request)


@app.task(name="lost", bind=True, affinity="pdf", retry_on_worker_lost=True, default_retry_delay=0, shared=False)
def lost(self):
    if not self.request.retries:
        os.kill(os.getpid(), signal.SIGKILL)
    return _seen(self.request)
