"""Redelivered chord parts: the process that counted a part may have died before it acked the job.

The process that counts the last part of a chord publishes the body. In Celery 5.7 that process first claims the chord.
While a claim lasts (about 20 s, even if its process died), Celery ignores further attempts to count the last part.
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

#: Value of Celery's claim of a chord after the body was published.
_DONE = (b"done", "done")
#: Attribute that marks the replaced method of a result backend.
_WRAPPED = "_celery_affinity_publishes_once"


class ChordIsClaimedError(Exception):
    """Another process is publishing the body of the chord, or died while publishing it."""


def install_chord_parts() -> None:
    """Make this process publish a chord's body under one id, even if parts are counted repeatedly."""
    count = RedisBackend.on_chord_part_return
    if hasattr(count, _WRAPPED):
        return

    @wraps(count)
    def on_chord_part_return(backend: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        with _publish_body_once(backend, request):
            return count(backend, request, *args, **kwargs)

    setattr(on_chord_part_return, _WRAPPED, True)
    RedisBackend.on_chord_part_return = on_chord_part_return


def count_again(backend: Any, context: Context) -> None:
    """Make *backend* count the part of *context* if it can count a part twice safely. Otherwise leave the part out.

    A backend with a plain counter would count a part twice, and so call the body too early. Raises ChordIsClaimedError.
    """
    if context.chord and context.group and not _counts_idempotently(backend):
        context.chord = None
    else:
        check_claim(backend, context)


def count_what_is_stored(backend: Any, context: Context, state: str, result: Any) -> None:
    """Count the part of *context*, with the stored *result*, like `count_again`. Raises ChordIsClaimedError."""
    count_again(backend, context)
    if context.chord and context.group:
        backend.on_chord_part_return(context, state, result)


def check_claim(backend: Any, context: Context) -> None:
    """Raise ChordIsClaimedError if the chord of *context* is claimed and its body may be unpublished."""
    if context.chord and context.group and _claims(backend):
        claim = backend.client.get(backend.get_key_for_group(context.group, ".c"))
        if claim is not None and claim not in _DONE:
            raise ChordIsClaimedError(f"the body of chord {context.group} is being published, or its publisher died")


def _counts_idempotently(backend: Any) -> bool:
    """Return True if *backend* counts parts by their task ids or contents, so that no part is counted twice."""
    if not isinstance(backend, RedisBackend):
        return False
    options = backend.app.conf.get("result_backend_transport_options", {})
    return _claims(backend) or bool(options.get("result_chord_ordered", True))


def _claims(backend: Any) -> bool:
    """Return True if *backend* claims a chord before it publishes the body, as in Celery 5.7."""
    return isinstance(backend, RedisBackend) and celery.VERSION[:2] >= (5, 7)


@contextmanager
def _publish_body_once(backend: Any, context: Any) -> Iterator[None]:
    """Publish the body of a chord, if that happens in this context, under the id of an earlier attempt.

    The id is stored next to the chord's own keys while another process may count again. A chord that is applied twice
    has one group id, so that id alone would make the second body a duplicate.
    """
    keys: list[str] = []

    def origin() -> str:
        keys.append(backend.get_key_for_group(context.group, ".body"))
        nonce = uuid4().hex
        with suppress(RedisError):  # the body is published anyway
            backend.client.set(keys[0], nonce, nx=True, ex=getattr(backend, "chord_expires", backend.expires) or None)
            stored = backend.client.get(keys[0]) or nonce
            nonce = stored.decode() if isinstance(stored, bytes) else stored
        return f"{context.group} {nonce}"

    with follow_up_ids(origin, context.chord):
        yield
    if keys:
        with suppress(RedisError):  # the key expires
            backend.client.delete(keys[0])
