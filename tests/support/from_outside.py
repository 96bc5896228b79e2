"""Values that other processes may have written: good, spoiled, or missing."""

from hypothesis import strategies as st

from .apps import APP

#: Half a surrogate pair: possible in JSON, not in UTF-8.
HALF = "\ud800"


TEXTS = st.text(st.characters(exclude_categories=())) | st.sampled_from(["pdf", "a=b", "foo", HALF, "", "9" * 5000])


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS


VALUES = st.recursive(SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXTS, each, max_size=3))


def some(**parts):
    """Return a mapping: some of the *parts* are as they should be, others are anything, and others are missing."""
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
