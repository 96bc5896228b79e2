"""Values of the settings that choose the worker that gets a job: the policy, and the priority of a worker.

The rule itself is ``lua/matching/slot_choice.lua``. The reference model has it in Python
(``tests/conformance/reference/placement.py``), and the lab's fast engine in `lab.fast_engine_state`.
"""

from ..schema.values import is_whole

#: Value of ``affinity_placement`` that places jobs by points.
WEIGHTED = "weighted"

#: Maximum priority. The minimum is its negative.
LARGEST = 1_000

ACCEPTED = f"a whole number from {-LARGEST} to {LARGEST}"


def check_worker_priority(value: object) -> str | None:
    """Return None if *value* is a valid priority. Otherwise return the accepted values as text."""
    return None if is_whole(value) and abs(value) <= LARGEST else ACCEPTED
