"""What a worker says of the end of a job that did not end well."""

from collections.abc import Mapping

from celery_affinity.rules.protocol import MOST_WHY_BYTES

from ..model import Outcome, State

#: Outcome of a claimed job that was settled -> the state of the job then.
STATE_AFTER: Mapping[str, State] = {
    "acked": "done",
    "ignored": "done",
    "failed": "failed",
    "revoked": "revoked",
    "expired": "expired",
}


def read_outcome(outcome: Outcome) -> tuple[str, str]:
    """Return how the job ended, and why: in words, "" if nothing is said."""
    how, _, words = outcome.partition(" ")
    return how, words.encode()[:MOST_WHY_BYTES].decode(errors="replace")
