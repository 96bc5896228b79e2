"""The lines that a worker logs about its place in the fleet: one when it joins, and one when it leaves."""

from collections.abc import Sequence

from ..versions import versions

#: Most types that the line names. Of a longer list the line has the number, too.
_NAMED = 8


def line_on_joining(
    *,
    types: Sequence[str],
    slots: int,
    guard: int | None,
    timeout_s: float,
    namespace: str,
    prefix: str,
    server: str,
    uri: str,
) -> str:
    """Return the line of a worker that joins: the types, the slots, the guard, and the place of the fleet.

    *guard*: a process id. *timeout_s*: the silence that looks like death. *prefix*: of all keys. *uri*: the broker's
    URL as users write it, without a password.
    """
    guarded = (
        f"guarded by process {guard}"
        if guard is not None
        else f"no guard: declared dead after {timeout_s:g} s of silence"
    )
    where = f"namespace {namespace!r}" + (f" behind prefix {prefix!r}" if prefix else "")
    own = versions()["celery_affinity"]
    return (
        f"celery_affinity {own}: serves {_some(types)} with {_count(slots, 'slot')}; {guarded}; "
        f"{where} on {server} at {uri}"
    )


def line_on_joining_again(*, anew: bool, unfinished: int) -> str:
    """Return the line of a worker that joins after a reconnect.

    *anew*: the server had taken the worker for dead, or forgotten it.
    """
    if anew:
        return "celery_affinity: joined again, as a new member"
    return f"celery_affinity: joined again; still holds {_count(unfinished, 'job')}"


def line_on_leaving(given_back: int) -> str:
    """Return the line of a worker that goes, *given_back* being the number of its jobs that are pending again."""
    return f"celery_affinity: left the fleet; {_count(given_back, 'job')} given back"


def _some(types: Sequence[str]) -> str:
    if not types:
        return "no scheduled queue"
    more = f", ... ({len(types):,} in all)" if len(types) > _NAMED else ""
    return ", ".join(types[:_NAMED]) + more


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
