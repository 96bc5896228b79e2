"""The marks at the end of a job's id, which arrows and workers read instead of the job: see `known_marks`."""

import re

from .known_marks import (
    ALL,
    BATCH,
    HINT,
    HINTED,
    KEYED,
    KEYS,
    MANY_KEYED,
    MERGES,
    OF_KEYS,
    RULE,
    TENANTED,
    WORDS,
    characters,
)
from .rule_texts import keys_in, parts_of, word_in

_AT_END = re.compile("".join(f"[{re.escape(characters(place))}]?" for place in (HINT, RULE, KEYS)) + r"\Z")


def at_end(job_id: str) -> str:
    """Return all marks of *job_id*; "" for none."""
    found = _AT_END.search(job_id)
    return found[0] if found else ""


def has_key(job_id: str) -> bool:
    return job_id.endswith(OF_KEYS)


def has_many_keys(job_id: str) -> bool:
    return job_id.endswith(MANY_KEYED)


def has_tenant_alone(job_id: str) -> bool:
    """Return whether the only key of the job is that of its tenant."""
    return job_id.endswith(TENANTED)


def key_mark(job_id: str) -> str:
    """Return the mark of keys at the end of *job_id*; "" for none."""
    return job_id[-1:] if has_key(job_id) else ""


def merges(job_id: str) -> bool:
    """Return whether *job_id* is that of one call, which merges with others that wait when it does."""
    return job_id.removesuffix(key_mark(job_id)).endswith(MERGES)


def has_hint(job_id: str) -> bool:
    return HINTED in at_end(job_id)


def is_batch(job_id: str) -> bool:
    return job_id.removesuffix(key_mark(job_id)).endswith(BATCH)


def batch_of(first: str) -> str:
    """Return the id of the batch that begins with the call *first*."""
    mark = key_mark(first)
    return first.removesuffix(mark).removesuffix(MERGES) + BATCH + mark


def marks_for(rules: str) -> str:
    """Return the marks of a job whose rules are this text (`rule_texts`)."""
    merging, keys = parts_of(rules)
    said = {mark.character for mark in WORDS if word_in(rules, mark.word)}
    said |= {MERGES if merging else "", _key_mark_for(keys)}
    return "".join(character for character in ALL if character in said)


def _key_mark_for(keys: str) -> str:
    found = keys_in(keys)
    if len(found) == 1:
        return TENANTED if found[0].stated is None else KEYED
    return MANY_KEYED if found else ""


def marked(job_id: str, rules: str) -> str:
    """Return *job_id* with the marks of a job whose rules are this text, "" for none."""
    return f"{job_id}{marks_for(rules)}" if rules else job_id
