"""Untrusted values that other processes may have written: valid, corrupt, or missing."""

import json

from hypothesis import strategies as st
from kombu.utils.json import loads

from .apps import APP

#: Half a surrogate pair: possible in JSON, not in UTF-8.
HALF = "\ud800"


TEXTS = st.text(st.characters(exclude_categories=())) | st.sampled_from(["pdf", "a=b", "foo", HALF, "", "9" * 5000])


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS


def marked(type_, value):
    """Return an object of kombu's JSON, which kombu decodes as a Decimal, a UUID, bytes or a time."""
    return {"__type__": type_, "__value__": value}


#: Objects of kombu's JSON, some of them too large for any conversion.
MARKED = [
    *(marked("decimal", text) for text in ("1E+999999999", "-1E+999999999", "1E-999999999", "NaN", "sNaN", "Infinity")),
    marked("decimal", "3.5"),
    marked("decimal", "9" * 5000),
    marked("uuid", {"hex": "0" * 32}),
    marked("uuid", {"int": 7}),
    marked("uuid", 7),
    *(marked(type_, "2099-01-01T00:00:00") for type_ in ("datetime", "date", "time")),
    marked("datetime", "0001-01-01T00:00:00+14:00"),
    marked("time", "12:00:00"),
    marked("bytes", "text"),
    marked("bytes", 7),
    marked("base64", "AAAA"),
    marked("no such type", 7),
    marked(["no text"], 7),
]

#: Numbers that are too large or not valid.
NUMBERS = [10**400, -(10**4000), float("inf"), float("-inf"), float("nan"), 1e308, True]


def nested(levels, inner=0):
    """Return *inner* within *levels* lists."""
    for _ in range(levels):
        inner = [inner]
    return inner


def as_kombu_reads(value):
    """Return *value* decoded by kombu from its JSON, or *value* itself if that fails."""
    try:
        return loads(json.dumps(value))
    except Exception:
        return value


VALUES = st.recursive(
    SCALARS | st.sampled_from([*MARKED, *NUMBERS, nested(150)]),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXTS, each, max_size=3),
)


def some(**parts):
    """Return mappings of *parts*: some values are valid, others are arbitrary, and others are missing."""
    return st.fixed_dictionaries({}, optional={name: good | VALUES for name, good in parts.items()})


HEADERS = some(
    task=st.just(f"{APP}.tally"),
    id=TEXTS,
    eta=st.just("2099-01-01T00:00:00"),
    expires=st.just("2099-01-01T00:00:00"),
    stamps=some(customer=TEXTS),
    stamped_headers=st.just(["customer"]),
    clock=st.integers(),
    compression=TEXTS,
    timelimit=st.just([1, 2]),
)


PROPERTIES = some(
    body_encoding=st.just("base64"),
    delivery_tag=TEXTS,
    delivery_info=some(exchange=TEXTS, routing_key=TEXTS),
    priority=st.integers(),
    correlation_id=TEXTS,
)


MESSAGES = (
    some(
        **{"content-type": st.just("application/json"), "content-encoding": st.just("utf-8")},
        body=TEXTS,
        headers=HEADERS,
        properties=PROPERTIES,
    )
    | VALUES
)


COMMANDS = (
    some(
        method=st.sampled_from(["revoke", "revoke_by_stamped_headers"]),
        arguments=some(task_id=TEXTS | st.lists(TEXTS), headers=st.lists(TEXTS) | st.dictionaries(TEXTS, VALUES)),
        destination=st.none(),
    )
    | VALUES
)
