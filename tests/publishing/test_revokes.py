"""Revokes read from broadcasts with arbitrary content."""

import json

import pytest
from hypothesis import given

from celery_affinity.publishing.message import read_revoke, stamps_of

from ..support.from_outside import COMMANDS, HALF, HEADERS, MESSAGES


def broadcast(command):
    return {"body": json.dumps(command), "content-type": "application/json", "content-encoding": "utf-8"}


@given(COMMANDS)
def test_broadcast_revokes_only_valid_redis_names(command):
    revoked = read_revoke("celery.pidbox", broadcast(command))
    assert revoked is None or all(name.encode() for name in (*revoked.task_ids, *revoked.stamps) if name)


@given(MESSAGES)
def test_invalid_broadcast_revokes_nothing(message):
    assert read_revoke("celery.pidbox", message) is None


@pytest.mark.parametrize(
    ("arguments", "revoked"),
    [
        ({"task_id": ["good", HALF, {"a": 1}, None, True, 7]}, ["good", "7"]),
        ({"task_id": 7}, ["7"]),
        ({"task_id": HALF}, []),
        ({"task_id": None}, []),
        (["good"], None),
        ("good", None),
    ],
)
def test_invalid_ids_are_left_out_of_a_revoke(caplog, arguments, revoked):
    found = read_revoke("celery.pidbox", broadcast({"method": "revoke", "arguments": arguments}))
    assert (found.task_ids if found else None) == revoked
    assert bool(caplog.records) == (arguments not in ({"task_id": 7}, {"task_id": None})), "and that is said"


@pytest.mark.parametrize(
    ("headers", "stamps"),
    [
        (["customer=7", "region=a=b"], ["customer:7", "region:a%3Db"]),
        (["customer"], None),
        ("customer=7", []),
        ([7], None),
        ({"customer": ["7", HALF, {}], HALF: "x", "none": None}, ["customer:7"]),
    ],
)
def test_invalid_stamps_are_left_out_of_a_revoke(headers, stamps):
    command = {"method": "revoke_by_stamped_headers", "arguments": {"headers": headers}}
    found = read_revoke("celery.pidbox", broadcast(command))
    assert (found.stamps if found else None) == stamps


@given(HEADERS)
def test_stamps_of_a_message_are_valid_redis_names(headers):
    assert all(stamp.encode() for stamp in stamps_of(headers))
