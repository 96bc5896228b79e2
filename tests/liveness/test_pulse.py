"""The guard reads the pulse of an event loop from another process."""

import time

from celery_affinity.liveness.pulse import Pulse, PulseReader


def test_pulse_reader_sees_the_loops_last_run():
    pulse = Pulse()
    reader = PulseReader(pulse.fileno())
    before = reader.ran_at_s
    assert not pulse.stands_still
    pulse.note_run()
    assert before < reader.ran_at_s <= time.monotonic()
