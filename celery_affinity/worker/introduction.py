"""What a worker says of its place in the fleet: a line when it joins, and one when it leaves."""

from collections.abc import Sequence

from ..versions import versions

#: Types that the line names at most; of a longer list it has the number, too.
_NAMED = 8


def of_joining(
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
    """Return the line of a worker that joins: what it is, and where its fleet is to be found.

    *guard*: a process id. *timeout_s*: the silence that looks like death. *prefix*: of all keys. *uri*: as users write
    it, without a password.
    """
    guarded = f"guarded by process {guard}" if guard is not None else f"no guard: {timeout_s:g} s of silence are death"
    where = f"namespace {namespace!r}" + (f" behind prefix {prefix!r}" if prefix else "")
    own = versions()["celery_affinity"]
    return (
        f"celery_affinity {own}: serves {_some(types)} with {_count(slots, 'slot')}; {guarded}; "
        f"{where} on {server} at {uri}"
    )


def of_joining_again(*, anew: bool, unfinished: int) -> str:
    """Return the line of a worker that joins after a reconnect.

    *anew*: the server had taken the worker for dead, or forgotten it.
    """
    if anew:
        return "celery_affinity: joined again, as a new member"
    return f"celery_affinity: joined again; what it holds goes on: {_count(unfinished, 'job')}"


def of_leaving(given_back: int) -> str:
    """Return the line of a worker that goes, *given_back* being the number of its jobs that are pending again."""
    return f"celery_affinity: left the fleet; {_count(given_back, 'job')} given back"


def _some(types: Sequence[str]) -> str:
    if not types:
        return "no scheduled queue"
    more = f", ... ({len(types):,} in all)" if len(types) > _NAMED else ""
    return ", ".join(types[:_NAMED]) + more


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
