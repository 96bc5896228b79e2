"""The pulse of an event loop, which the guard reads from another process."""

import time

from celery_affinity.liveness.pulse import Pulse, PulseReader


def test_a_pulse_is_read_by_another_process():
    pulse = Pulse()
    reader = PulseReader(pulse.fileno())
    before = reader.ran_at_s
    assert not pulse.stands_still
    pulse.note_run()
    assert before < reader.ran_at_s <= time.monotonic()
