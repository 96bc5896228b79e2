"""The publish ids of what follows from an end (links, the next step of a chain, the body of a chord).

An end may be told twice: the process that told it may have died before it could say so. The ids are made from the job
that ended, so that what was published before is a known job, and is not published again.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..rules.made_ids import made_id
from .passed_on import parts_of


class _Following:
    """The calls that are published because of the end of a task, such as its links. *origin*: what names this end.

    *count*: name of a task -> its calls that were published so far. A handler of a signal may publish calls as well:
    as each task is counted by itself, these calls change no id of a link. A function as *origin* is called at the first
    publish.
    """

    def __init__(self, origin: str | Callable[[], str]) -> None:
        self._origin = origin
        self.count: Counter[str] = Counter()

    @property
    def origin(self) -> str:
        if not isinstance(self._origin, str):
            self._origin = self._origin()
        return self._origin

    def id_of_next(self, task_name: str) -> str:
        self.count[task_name] += 1
        return made_id(f"{self.origin} {self.count[task_name]} {task_name}")


_following: ContextVar[_Following | None] = ContextVar("celery_affinity_following", default=None)


def new_publish_id(task_name: str) -> str:
    """Return the id of a call of a task: by chance, or made from the end that it follows from."""
    following = _following.get()
    return os.urandom(16).hex() if following is None else following.id_of_next(task_name)


@contextmanager
def following(origin: str | Callable[[], str], *signatures: Any) -> Iterator[None]:
    """Give what is published the ids of what follows from *origin*: these *signatures*, each as its message has it.

    A chord gets new ids: its header counts under an id that Celery makes anew, and half a header of each would be none.
    """
    token = _following.set(None if any(map(_begins_with_a_chord, signatures)) else _Following(origin))
    try:
        yield
    finally:
        _following.reset(token)


def _begins_with_a_chord(signature: Any) -> bool:
    """Return whether a call of *signature* publishes several messages that count together."""
    if not isinstance(signature, dict):
        return False
    kind, names = signature.get("subtask_type"), parts_of(signature)
    if not names or kind == "chord":
        return kind == "chord"
    parts: Sequence[Any] = signature["kwargs"].get(names[0]) or ()
    if kind == "chain":
        is_header = len(parts) > 1 and isinstance(parts[0], dict) and parts[0].get("subtask_type") == "group"
        return is_header or any(map(_begins_with_a_chord, parts[:1]))
    return any(map(_begins_with_a_chord, parts))
