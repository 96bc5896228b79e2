"""An untrusted message has the parts that Celery and kombu trust, or is refused as unreadable."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from kombu.transport.virtual import Channel

from celery_affinity.transport.inbox import CheckedMessage, UnreadableError, check_control_message

from ..support.from_outside import MESSAGES, as_kombu_reads


@given(MESSAGES.map(as_kombu_reads))
def test_untrusted_message_is_valid_or_unreadable(payload):
    try:
        message = CheckedMessage(payload, channel=SimpleNamespace(decode_body=Channel.decode_body.__get__(Channel)))
    except UnreadableError:
        return
    assert isinstance(message.headers, dict)
    assert isinstance(message.delivery_info, dict)
    assert message.delivery_tag.encode()
    assert isinstance(message.properties.get("priority") or 0, int)


@given(MESSAGES.map(as_kombu_reads))
def test_control_message_is_valid_or_unreadable(payload):
    try:
        check_control_message(payload)
    except UnreadableError:
        return
    headers = payload.get("headers") or {}
    assert max(1, headers.get("clock") or 0) + 1 < 2**63
    assert {headers.get("ticket"): 1}


@pytest.mark.parametrize("clock", [2**62, -(2**62), 10**400, float("inf"), float("nan"), "x", [1], {"a": 1}])
def test_invalid_logical_clock_is_refused(clock):
    with pytest.raises(UnreadableError, match="clock"):
        check_control_message({"headers": {"clock": clock}})
