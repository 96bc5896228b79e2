"""Run the random-operation test on the reference alone: `python -m tests.conformance.alone [STEPS [SEED]]`.

Without a server a step costs less than half. It checks the invariants of any state; the conformance test compares the
server.
"""

import random
import sys
from collections import Counter

from .machine import STEPS_IN_A_RUN, Conformance
from .walk import run


class NoServer:
    """A wire without a server."""

    def empty(self):
        """Do nothing."""

    def add(self, *command):
        """Do nothing."""

    def add_script(self, arrow, base, rest, values):
        """Do nothing."""


class Alone(Conformance):
    """The moves, on the reference only."""

    def compare_with_server(self):
        self.awaited.clear()
        self.state = {}


def main(steps="100000", seed=None):
    seed = random.randrange(2**32) if seed is None else int(seed)
    print(f"SEED={seed}", flush=True)
    tally = Counter()
    run(lambda: Alone(NoServer(), tally), steps=int(steps), steps_in_a_run=STEPS_IN_A_RUN, seed=seed)
    print(steps, "steps:", dict(tally))


if __name__ == "__main__":
    main(*sys.argv[1:])
