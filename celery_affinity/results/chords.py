"""Parts of chords that may have been counted: the process that counted a part died before it could say so.

Whoever counts the last part of a chord publishes the body. Celery 5.7 has that process claim the chord first, and
ignores the last part while a claim lasts, even the claim of a process that died: for about 20 s.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any
from uuid import uuid4

import celery
from celery.app.task import Context
from celery.backends.redis import RedisBackend
from redis.exceptions import RedisError

from ..publishing.canvas import follow_up_ids

#: What Celery's claim of a chord says once the chord's body is published.
_DONE = (b"done", "done")

#: Name of the attribute of the method of a result backend that is replaced.
_WRAPPED = "_celery_affinity_publishes_once"


class ChordIsClaimedError(Exception):
    """Somebody is publishing the body of the chord, or has died in the middle of that."""


def install_chord_parts() -> None:
    """Have the process publish a chord's body under one id, however often its parts are counted until then."""
    count = RedisBackend.on_chord_part_return
    if hasattr(count, _WRAPPED):
        return

    @wraps(count)
    def on_chord_part_return(backend: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        with _published_once(backend, request):
            return count(backend, request, *args, **kwargs)

    setattr(on_chord_part_return, _WRAPPED, True)
    RedisBackend.on_chord_part_return = on_chord_part_return


def count_again(backend: Any, context: Context) -> None:
    """Have *backend* count the part of the call *context*, which may be counted, or leave the part out.

    A backend that counts by a number would count a part twice, and so call the body too early. Raises
    ChordIsClaimedError.
    """
    if context.chord and context.group and not _counts_once(backend):
        context.chord = None
    else:
        check_claim(backend, context)


def count_what_is_stored(backend: Any, context: Context, state: str, result: Any) -> None:
    """Count the part of the call *context*, which ended with the stored *result*, unless nobody could tell it twice.

    Raises ChordIsClaimedError.
    """
    count_again(backend, context)
    if context.chord and context.group:
        backend.on_chord_part_return(context, state, result)


def check_claim(backend: Any, context: Context) -> None:
    """Raise ChordIsClaimedError if the chord of the call *context* is claimed, and its body may not be published."""
    if context.chord and context.group and _claims(backend):
        claim = backend.client.get(backend.get_key_for_group(context.group, ".c"))
        if claim is not None and claim not in _DONE:
            raise ChordIsClaimedError(f"the body of chord {context.group} is being published, or its publisher died")


def _counts_once(backend: Any) -> bool:
    """Return whether *backend* counts parts by the ids of their tasks, or by the parts themselves."""
    if not isinstance(backend, RedisBackend):
        return False
    options = backend.app.conf.get("result_backend_transport_options", {})
    return _claims(backend) or bool(options.get("result_chord_ordered", True))


def _claims(backend: Any) -> bool:
    """Return whether *backend* claims a chord before it publishes the body, as that of Celery 5.7 does."""
    return isinstance(backend, RedisBackend) and celery.VERSION[:2] >= (5, 7)


@contextmanager
def _published_once(backend: Any, context: Any) -> Iterator[None]:
    """Give the body of a chord, if it is published meanwhile, the id that it was published by before.

    That id is kept beside the chord's own keys for as long as somebody may count again. A chord that is applied twice
    has one group id, so the group's id alone would make the second body a known one.
    """
    kept: list[str] = []

    def origin() -> str:
        kept.append(backend.get_key_for_group(context.group, ".body"))
        nonce = uuid4().hex
        with suppress(RedisError):  # the body is published all the same
            backend.client.set(kept[0], nonce, nx=True, ex=getattr(backend, "chord_expires", backend.expires) or None)
            found = backend.client.get(kept[0]) or nonce
            nonce = found.decode() if isinstance(found, bytes) else found
        return f"{context.group} {nonce}"

    with follow_up_ids(origin, context.chord):
        yield
    if kept:
        with suppress(RedisError):  # it expires
            backend.client.delete(kept[0])
