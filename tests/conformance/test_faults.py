"""The seeded faults can be tried: each one's text stands in its file. `make seeded-faults` tries them."""

import pytest

from celery_affinity.server.scripts.assembling import ARROWS

from .faults import FAULTS, Fault


def test_the_text_of_each_fault_stands_in_its_file_exactly_once():
    for fault in FAULTS:
        assert fault.broken() != fault.new


def test_a_text_that_is_gone_or_stands_there_twice_is_an_error():
    with pytest.raises(ValueError, match=r"arrows/ack\.lua must have this text once, not 0 times: gone"):
        Fault("arrows/ack", "gone", "").broken()
    with pytest.raises(ValueError, match=r"must have this text once, not \d+ times: local"):
        Fault("arrows/ack", "local", "").broken()


def test_no_fault_stands_twice_and_every_arrow_that_a_walk_calls_has_some():
    assert len(set(FAULTS)) == len(FAULTS)
    assert {f"arrows/{name}" for name in ARROWS} - {fault.file for fault in FAULTS} == {"arrows/repair"}
