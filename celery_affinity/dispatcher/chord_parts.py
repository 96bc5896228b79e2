"""Parts of chords that may have been counted: the process that told a caller died before it could say so."""

from typing import Any

from celery.app.task import Context
from celery.backends.redis import RedisBackend

#: What Celery's claim of a chord says once the chord's body is published.
_DONE = b"done"


class ChordIsClaimedError(Exception):
    """Somebody is publishing the body of the chord, or has died in the middle of that."""


def count_again(backend: Any, context: Context) -> None:
    """Have *backend* count the part of the call *context*, which may be counted, or leave the part out.

    A backend that counts by a number would count a part twice, and so call the body too early. Raises
    ChordIsClaimedError: whoever counts the last part of a chord claims the chord, and while that claim lasts, some 20 s
    after a death, Celery ignores the part.
    """
    if not (context.chord and context.group):
        return
    if not _counts_once(backend):
        context.chord = None
    elif _claims(backend):
        claim = backend.client.get(backend.get_key_for_group(context.group, ".c"))
        if claim not in (None, _DONE):
            raise ChordIsClaimedError(f"the body of chord {context.group} is being published")


def _counts_once(backend: Any) -> bool:
    """Return whether *backend* counts parts by the ids of their tasks, or by the parts themselves."""
    return isinstance(backend, RedisBackend) and bool(_claims(backend) or backend._chord_zset)


def _claims(backend: Any) -> bool:
    """Return whether *backend* claims a chord before it publishes the body, as that of Celery 5.7 does."""
    return hasattr(backend, "_chord_part_return_script")
