"""Every number in a query or body has bounds in the API description. Requests beyond them get 4xx with its name."""

from ..support.openapi import description

#: Query values, and JSON values in a body, that every number must reject.
TEXTS = ("1e308", "-1e308", "inf", "nan", "1" + "0" * 400, "9" * 5000)
JSON = ("1e308", "-1e308", "1" + "0" * 400, "9" * 4000, "1e400")


def numbers_in(schema):
    """Yield the parts of a schema that describe numbers."""
    for each in schema.get("anyOf", (schema,)):
        if each.get("type") in ("number", "integer"):
            yield each


def is_bounded(schema):
    return {"maximum", "exclusiveMaximum"} & {*schema} and {"minimum", "exclusiveMinimum"} & {*schema}


def queries():
    """Yield method, path, name and schema of each number in a query."""
    for path, methods in description()["paths"].items():
        for method, about in methods.items():
            for each in about.get("parameters", ()):
                for schema in numbers_in(each["schema"]) if each["in"] == "query" else ():
                    yield method.upper(), path, each["name"], schema


def test_every_number_in_a_query_has_bounds(web):
    wrong, tried = {}, 0
    for method, path, name, schema in queries():
        tried += 1
        if not is_bounded(schema):
            wrong[path, name] = f"has no bounds: {schema}"
        place = path.replace("{type_}", "pdf").replace("{", "").replace("}", "")
        for text in TEXTS:
            options = {"json": {"priority": 1}} if method == "PATCH" else {}
            reply = web(method, place, params={name: text}, headers={"Worker-Secret": "x"}, **options)
            if not 400 <= reply.status_code < 500 or name not in reply.json()["error"]["message"]:
                wrong[path, name, text[:20]] = reply.status_code, reply.text[:200]
    assert tried > 10
    assert not wrong


#: Bodies with a number. N is replaced by the number.
BODIES = [
    ("PATCH", "/api/jobs/x", '{"priority": N}'),
    ("PATCH", "/api/jobs?type=pdf", '{"priority": N}'),
    ("POST", "/api/types/pdf/pause", '{"for_s": N}'),
    ("POST", "/api/pauses", '{"kind": "all", "for_s": N}'),
    ("PATCH", "/api/tenants/acme", '{"max": N}'),
    ("PATCH", "/api/tenants/acme", '{"min": N}'),
    ("PATCH", "/api/tenants/acme", '{"weight": N}'),
    ("POST", "/api/workers", '{"name": "w", "types": ["pdf"], "slots": N}'),
    ("POST", "/api/workers", '{"name": "w", "types": ["pdf"], "priority": N}'),
    ("POST", "/api/workers/x/heartbeat", '{"running": [["a", N]]}'),
    ("POST", "/api/jobs/x/start", '{"fence": N}'),
    ("POST", "/api/jobs/x/end", '{"fence": N, "state": "done"}'),
    *(
        ("POST", "/api/jobs", f'{{"task": "tests.support.apps.typed.pdf", "options": {{"{option}": N}}}}')
        for option in ("priority", "countdown", "expires", "time_limit", "soft_time_limit")
    ),
    *(
        ("PATCH", "/api/settings", f'{{"{name}": N}}')
        for name in ("worker_timeout", "age_weight", "max_deliveries", "keep", "key_patience", "limits", "rarity")
    ),
    ("PATCH", "/api/settings", '{"limits": "k=N"}'),
    ("PATCH", "/api/settings", '{"reserve": "pdf:queued=N"}'),
    ("PATCH", "/api/settings", '{"tenants": "a=max:N"}'),
]


def test_every_number_in_a_body_has_bounds(web):
    wrong = {}
    for method, path, body in BODIES:
        for number in JSON:
            content = body.replace("N", number)
            headers = {"Content-Type": "application/json", "Worker-Secret": "x"}
            reply = web(method, path, content=content, headers=headers)
            # 1e400 becomes infinity, which JSON does not support.
            is_named = "got: " in reply.text or "JSON" in reply.text
            if not 400 <= reply.status_code < 500 or not is_named:
                wrong[path, body, number[:20]] = reply.status_code, reply.text[:200]
    assert not wrong
