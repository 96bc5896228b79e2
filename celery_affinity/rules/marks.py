"""The end of a job's id: arrows and workers know from the id alone what more there is to a job.

``!`` is last in the id of a job that has a key, ``&`` in the id of one that has several, ``$`` in the id of one whose
only key is that of its tenant. Before that, or last, stands ``+`` in the id of a job that merges with others, and ``*``
in the id of a batch, which the arrows made of several calls. Before these, or last, stands ``~`` in the id of a job
that has a hint of locality.
"""

from .protocol import BATCH, HINTED, KEYED, MANY_KEYED, MERGES, TENANTED
from .rule_texts import hint_in, keys_in, parts_of

#: The marks of keys.
OF_KEYS = (KEYED, MANY_KEYED, TENANTED)

#: The last characters of the ids of all jobs that have rules.
OF_RULES = (*OF_KEYS, MERGES, BATCH, HINTED)


def has_key(job_id: str) -> bool:
    return job_id.endswith(OF_KEYS)


def has_many_keys(job_id: str) -> bool:
    return job_id.endswith(MANY_KEYED)


def has_tenant_alone(job_id: str) -> bool:
    """Return whether the only key of the job is that of its tenant."""
    return job_id.endswith(TENANTED)


def of_keys(job_id: str) -> str:
    """Return the mark of keys at the end of *job_id*; "" for none."""
    return job_id[-1:] if has_key(job_id) else ""


def of_texts(keys: str) -> str:
    """Return the mark of a job of which *keys* is the part of its rules that says keys (`rule_texts`)."""
    found = keys_in(keys)
    if len(found) == 1:
        return TENANTED if found[0].stated is None else KEYED
    return MANY_KEYED if found else ""


def merges(job_id: str) -> bool:
    """Return whether *job_id* is that of one call, which merges with others that wait when it does."""
    return job_id.removesuffix(of_keys(job_id)).endswith(MERGES)


def has_hint(job_id: str) -> bool:
    return job_id.removesuffix(of_keys(job_id)).removesuffix(MERGES).removesuffix(BATCH).endswith(HINTED)


def is_batch(job_id: str) -> bool:
    return job_id.removesuffix(of_keys(job_id)).endswith(BATCH)


def batch_of(first: str) -> str:
    """Return the id of the batch that begins with the call *first*."""
    mark = of_keys(first)
    return first.removesuffix(mark).removesuffix(MERGES) + BATCH + mark


def marked(job_id: str, rules: str) -> str:
    """Return *job_id* with the marks of a job whose rules are this text (`rule_texts`), "" for none."""
    if not rules:
        return job_id
    of_merging, keys = parts_of(rules)
    return f"{job_id}{HINTED if hint_in(rules) else ''}{MERGES if of_merging else ''}{of_texts(keys)}"
