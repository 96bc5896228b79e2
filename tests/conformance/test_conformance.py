"""Every function against the reference: random steps on a real server, comparing the whole state after each.

``CONFORMANCE_STEPS`` is the number of steps, ``CONFORMANCE_SEED`` the seed; if it is empty, a seed is drawn. ``make
conformance`` sets both. Without a seed, the steps are always the same, so that each change is tested alike. Without a
number, Redis gets a third of the steps of Valkey, because the functions are the same. A failure is shrunk before it is
shown, unless ``CONFORMANCE_SHRINK`` is 0.
"""

import os
import random
from collections import Counter

import pytest

from .machine import STEPS_IN_A_RUN, Conformance
from .walk import run
from .wire import Wire

USUAL_STEPS = 3600
STEPS = int(os.environ.get("CONFORMANCE_STEPS", USUAL_STEPS))
SCRIPT_STEPS = STEPS if STEPS > 10_000 else STEPS // 9
USUAL_SEED = 1
SEED = int(os.environ.get("CONFORMANCE_SEED", USUAL_SEED) or random.randrange(2**32))
SHRINK = os.environ.get("CONFORMANCE_SHRINK") != "0"


@pytest.mark.timeout(900 + STEPS // 10)  # usually a minute of work for a core, shared with five other tests
@pytest.mark.parametrize(
    ("by_script", "steps"), [pytest.param(False, STEPS, id="functions"), pytest.param(True, SCRIPT_STEPS, id="script")]
)
def test_server_equals_the_reference_after_random_steps(redis_client, by_script, steps):
    """*by_script*: as on a server that refuses functions, where each call runs the text again and takes longer."""
    if STEPS == USUAL_STEPS and "valkey_version" not in redis_client.info("server"):
        steps //= 3
    tally = Counter()
    print(f"\nSEED={SEED}")
    with Wire(redis_client, by_script=by_script) as wire:
        run(lambda: Conformance(wire, tally), steps=steps, steps_in_a_run=STEPS_IN_A_RUN, seed=SEED, shrink=SHRINK)
    print(steps, "steps:", dict(tally))
