"""A waiting message is stored in a shorter form, and its worker reads the message as sent."""

import base64
import json
from datetime import UTC, datetime

import pytest

from celery_affinity.publishing.message import PROPERTY, JobHeader, decode_message, encode_job, encode_message


def message(**headers):
    """Return kombu's message of a small task."""
    body = base64.b64encode(b'[[1], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]').decode()
    says_nothing = dict.fromkeys(["shadow", "eta", "expires", "group", "group_index", "parent_id", "stamped_headers"])
    return {
        "body": body,
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": "proj.render",
            "id": "an-id",
            "retries": 0,
            **says_nothing,
            "stamps": {},
            **headers,
        },
        "properties": {"correlation_id": "an-id", "body_encoding": "base64", "priority": 0},
    }


HEADER = JobHeader("a-publish", None, 0, {}, None)


def read(given, header=HEADER):
    return decode_message(encode_message(given, header))


def test_default_headers_are_omitted_and_restored():
    given = message()
    waits = json.loads(encode_message(given, HEADER))
    assert waits["headers"] == {"lang": "py", "task": "proj.render", "id": "an-id", "retries": 0}
    assert read(given)["headers"] == given["headers"]


def test_other_headers_are_kept():
    said = {"group": "a-group", "group_index": 0, "stamps": {"batch": [1]}, "shadow": "", "affinity": ["the", "user's"]}
    found = read(message(**said))["headers"]
    assert {name: found[name] for name in said} == said


def test_job_header_keeps_the_options_for_retries():
    header = JobHeader("a-publish", "pdf", 7, {"on_demand": False}, 1.5, counted=3)
    properties = read(message(), header)["properties"]
    assert properties[PROPERTY] == {"on_demand": False}
    assert properties["delivery_info"] == {"exchange": "", "routing_key": "pdf"}
    assert properties["priority"] == 3, "as the app counts it"
    assert PROPERTY not in read(message())["properties"]


def test_text_body_is_stored_as_text():
    found = read(message())
    assert found["properties"]["body_encoding"] == "utf-8"
    assert json.loads(found["body"])[0] == [1]


@pytest.mark.parametrize("binary", [{"compression": "application/x-gzip"}, {}], ids=["compressed", "pickled"])
def test_binary_body_stays_base64(binary):
    given = message(**binary)
    given["body"] = base64.b64encode(b"\x1f\x8b\xff").decode()
    if not binary:
        given["content-encoding"] = "binary"
    found = read(given)
    assert found["properties"]["body_encoding"] == "base64"
    assert found["body"] == given["body"]


def test_storing_does_not_change_the_published_message():
    """kombu publishes the same message again after a lost connection."""
    given, as_it_was = message(), message()
    encode_job("pdf", given, JobHeader("a-publish", "pdf", 3, {"on_demand": True}, None))
    assert given == as_it_was


def test_small_message_is_shortened_by_nearly_a_third():
    given = message(argsrepr="(1,)", kwargsrepr="{}", root_id="an-id", timelimit=[None, None], origin="gen1@host")
    assert len(encode_message(given, HEADER)) < 0.7 * len(json.dumps(given))


def test_messages_of_other_producers_are_read_unchanged():
    for headers in ({}, {"task": "proj.render", "lang": "js"}):
        assert decode_message(json.dumps({"headers": headers, "body": "e30="}))["headers"] == headers


def test_values_beyond_json_are_read_like_with_kombu():
    when = datetime(2026, 1, 2, tzinfo=UTC)
    assert read(message(when=when))["headers"]["when"] == when
