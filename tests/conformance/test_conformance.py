"""Every arrow against the reference: random steps on a real server, and after each the whole state, compared.

``CONFORMANCE_STEPS`` is the number of steps, ``CONFORMANCE_SEED`` the seed: ``make conformance`` sets both. A failure
is made smaller before it is shown, unless ``CONFORMANCE_SHRINK`` is 0.
"""

import os
import random
from collections import Counter

from .machine import STEPS_IN_A_RUN, Conformance
from .walk import run
from .wire import Wire

STEPS = int(os.environ.get("CONFORMANCE_STEPS", "10000"))
SEED = int(os.environ.get("CONFORMANCE_SEED") or random.randrange(2**32))
SHRINK = os.environ.get("CONFORMANCE_SHRINK") != "0"


def test_the_server_does_what_the_reference_does(redis_client):
    tally = Counter()
    print(f"\nSEED={SEED}")
    with Wire(redis_client) as wire:
        run(lambda: Conformance(wire, tally), steps=STEPS, steps_in_a_run=STEPS_IN_A_RUN, seed=SEED, shrink=SHRINK)
    print(STEPS, "steps:", dict(tally))
