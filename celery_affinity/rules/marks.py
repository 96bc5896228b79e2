"""The end of a job's id: arrows and workers know from the id alone what more there is to a job.

``!`` is last in the id of a job that has a key. Before it, or last, stands ``+`` in the id of a job that merges with
others, and ``*`` in the id of a batch, which the arrows made of several calls.
"""

from .protocol import BATCH, KEYED, MERGES
from .rule_texts import parts_of


def has_key(job_id: str) -> bool:
    return job_id.endswith(KEYED)


def merges(job_id: str) -> bool:
    """Return whether *job_id* is that of one call, which merges with others that wait when it does."""
    return job_id.endswith((MERGES, MERGES + KEYED))


def is_batch(job_id: str) -> bool:
    return job_id.endswith((BATCH, BATCH + KEYED))


def batch_of(first: str) -> str:
    """Return the id of the batch that begins with the call *first*."""
    mark = KEYED if has_key(first) else ""
    return first.removesuffix(mark).removesuffix(MERGES) + BATCH + mark


def marked(job_id: str, rules: str) -> str:
    """Return *job_id* with the marks of a job whose rules are this text (`rule_texts`), "" for none."""
    if not rules:
        return job_id
    of_merging, of_key = parts_of(rules)
    return f"{job_id}{MERGES if of_merging else ''}{KEYED if of_key else ''}"
