"""Messages written by tests, and messages run without a worker."""

import base64
import json
import uuid
from contextlib import contextmanager

from celery._state import _task_stack

from .apps import APP


def wire(task_id="t", *, priority=0, version=2, args=("job",), **headers):
    """Return a message of a producer in another language, with only the fields that Celery requires."""
    if version == 1:
        body = {"id": task_id, "task": f"{APP}.tally", "args": args, "kwargs": {}, **headers}
        headers = None
    else:
        body = [args, {}, {}]
        headers = {"id": task_id, "task": f"{APP}.tally", "lang": "go", **headers}
    message = {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "properties": {"body_encoding": "base64", "delivery_tag": str(uuid.uuid4()), "priority": priority},
    }
    return json.dumps(message if headers is None else {**message, "headers": headers})


@contextmanager
def running(task, message):
    """Push the request of *message* for *task*, like the tracer of a worker."""
    properties = message["properties"]
    delivery_info = {**properties["delivery_info"], "priority": properties["priority"]}
    fields = {"properties": properties, "delivery_info": delivery_info, "called_directly": False}
    task.push_request(message["headers"], **fields, args=(), kwargs={})
    _task_stack.push(task)
    try:
        yield task.request
    finally:
        _task_stack.pop()
        task.pop_request()
