"""The page of the requests of workers over HTTP, from the description of the HTTP interface itself."""

from collections.abc import Iterator, Mapping
from typing import Any

from celery import Celery

from celery_affinity.web.app import routes_of
from celery_affinity.web.auth import WORKER, needed_role

from .markdown import MADE, prose, table

BEFORE = """# Workers over HTTP: the protocol

Any program can be a worker: it joins, waits for jobs, and reports how they ended.
[Workers in Node, shell or any language](../how-to/workers-in-other-languages.md) shows each request, and whole workers. A token needs the role `worker` (or `admin`).
`/openapi.json` has the same description for programs.

## Rules

- After no answer, or an answer 5xx, the worker repeats the request unchanged. A repeated heartbeat has a new list of jobs. Only a repeated join
  differs: each join creates a worker, and a worker without requests is dead after the timeout.
- Each request except the join has the worker's secret in the header `Worker-Secret`.
- A poll or a heartbeat shows that the worker lives. A worker that waits in a poll sends no heartbeat; a worker that runs jobs sends a
  heartbeat every `heartbeat_s`. After `timeout_s` of silence the worker is dead: its jobs are pending again, each of its requests gets 404, and it must join again. No guard
  notices its death earlier.
- After its join, a worker gets jobs into its free slots immediately, like Celery's workers, not only during a poll. So it polls whenever a
  slot is free, and leaves to get no more jobs. Jobs that it never fetched are requeued when it dies, with a delivery counted.
- An error is JSON, `{"error": {"code", "message"}}`. 400: the body or the query is invalid. 401: the token is missing, or unknown.
  403: the token has another role, or the secret belongs to another worker. 404: join again. 409: the claim no longer belongs to the worker. 413: more than
  1 MB. 422: the fields contradict each other. 503: the broker does not answer: repeat the request.
- One poll at a time waits for a worker. A later poll ends the one before, which gets 204.
- A poll with `held`, the fences of all jobs that the worker has, separated by commas, returns a job again whose reply was lost. Without `held`,
  the job keeps the slot until a heartbeat, a minute or more after the claim, returns it to the fleet. To avoid that wait, a worker
  sends `held` with each poll, even if it is empty. A job is held until its end was answered.
- A worker starts a job only after `start` was answered with 200. After 409 the worker drops the job, which no longer belongs to it.
- `end` is sent until it is answered. 200 or 409: the job is over for this worker. A repeated end gets the reply of the first one, for an hour.
- A job in `stop` of a heartbeat or a poll must stop: "revoked" (the worker then reports the state `revoked`), or "preempted": another job
  gets its slot within `grace_s`. A job in `gone` belongs to another worker: its end is not reported.
- Jobs are JSON (RFC 8259), nested in up to 100 levels. All request bodies have the same limits: others are refused with 400. A job with another kind
  of body (pickle, yaml, compressed, NaN, deeper arguments), or whose merged calls need a function in Python
  (`keep="all"`, `fold`, `split`), stays pending for the Celery workers that serve its type. The worker over HTTP that would have got the job
  takes no job of this type until a Celery worker has taken that one, and `celery affinity check` names the job (`left-to-celery`).
  Where only workers over HTTP serve the type, such a job becomes a dead letter with that reason, and can be replayed. A job with a task
  that the web process's app does not define becomes a dead letter, too. Separate types for workers over HTTP avoid both.
- Celery's own code handles results, links, chains, chords and errbacks in the web process. The app there needs the result backend and the
  tasks. Methods such as `on_success` do not run; the signals `task_success` and `task_failure` are sent.
- A task without `acks_late` is acked at its start: its job does not run again if the worker dies. Tasks for workers over HTTP usually need
  `acks_late=True`.
- Time limits, rate limits of the app, retries (`autoretry_for`), remote control, events and recordings are not for workers over HTTP.

"""

#: Bodies and replies, by the method and path of their request, in the order of a job's way.
_ORDER = ("/api/workers", "/api/workers/{worker}/jobs", "/api/jobs/{id}/start", "/api/workers/{worker}/heartbeat")


def page() -> str:
    app = Celery("docs", broker="redis://", set_as_current=False)
    app.conf.broker_transport = "celery_affinity:Transport"
    described = routes_of(app).openapi()
    schemas = described["components"]["schemas"]
    parts = [MADE, BEFORE]
    for method, path, about in _requests(described):
        parts.append(f"## {method} {path}\n\n{about['summary']}.\n\n")
        query = [each for each in about.get("parameters", ()) if each["in"] == "query"]
        if query:
            parts.append("After the `?`:\n\n" + table(("name", "type"), [_named(each) for each in query]) + "\n")
        if "requestBody" in about:
            parts.append("Body:\n\n" + _fields(_schema_of(about["requestBody"], schemas), schemas))
        for status, reply in about["responses"].items():
            if status.startswith("2"):
                parts.append(f"Reply {status}: ")
                parts.append(_fields(_schema_of(reply, schemas), schemas) if "content" in reply else "no body.\n\n")
    return "".join(parts).rstrip("\n") + "\n"


def _requests(described: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    found = [
        (method.upper(), path, about)
        for path, methods in described["paths"].items()
        for method, about in methods.items()
        if needed_role(method.upper(), path) == WORKER
    ]
    rank = {path: nth for nth, path in enumerate(_ORDER)}
    yield from sorted(found, key=lambda each: (rank.get(each[1], len(rank)), each[0] == "DELETE"))


def _named(parameter: Mapping[str, Any]) -> tuple[str, str]:
    return f"`{parameter['name']}`", _type(parameter["schema"])


def _schema_of(part: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = part["content"]["application/json"]["schema"]["$ref"]
    return schemas[reference.rpartition("/")[2]]  # type: ignore[no-any-return]


def _fields(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Return the text of a schema, a table of its fields, and those of the schemas in them."""
    required = schema.get("required", ())
    rows = [
        (f"`{name}`", _type(field), "" if name in required else "optional")
        for name, field in schema["properties"].items()
    ]
    text = f"{prose(schema.get('description'))}\n\n{table(('field', 'type', ''), rows)}\n"
    inner = [name for field in schema["properties"].values() for name in _referred(field)]
    return text + "".join(f"{name}: {_fields(schemas[name], schemas)}" for name in dict.fromkeys(inner))


def _referred(field: Mapping[str, Any]) -> list[str]:
    if "$ref" in field:
        return [field["$ref"].rpartition("/")[2]]
    inner = [*field.get("anyOf", ()), *([field["items"]] if isinstance(field.get("items"), dict) else [])]
    return [name for each in inner for name in _referred(each)]


def _type(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if "anyOf" in field:
        return " or ".join(map(_type, field["anyOf"]))
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    if field.get("type") == "array":
        each = field.get("prefixItems")
        return f"list of {_type(field['items'])}" if each is None else f"[{', '.join(map(_type, each))}]"
    bounds = [
        f"{words} {int(field[name]):,}"
        for name, words in (
            ("minimum", "from"),
            ("maximum", "to"),
            ("maxLength", "up to"),
        )
        if name in field
    ]
    return " ".join([str(field.get("type", "any JSON")), *bounds])
