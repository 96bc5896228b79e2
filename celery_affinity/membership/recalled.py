"""Claims from before a pause, which do not start here any more: a sign of the server recalls them."""

from ..rules import addresses, marks
from ..rules.encoding import decode

#: What stands for all keys: a claim does not say its own. Jobs of other keys go back as well, and come again at once.
_KEYS = "key"


class Recalled:
    """What was paused, each with the last fencing number that the server had given by then; false if nothing was.

    A claim that the server grants when a pause is over has a greater number, so nothing here has to end.
    """

    def __init__(self) -> None:
        self._up_to: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._up_to)

    def add(self, what: str, fence: int) -> None:
        """Recall claims up to *fence* of *what*: "type:T" or "key:K", encoded, or "*" for all."""
        self._up_to[_KEYS if addresses.parts_of(what)[0] == "key" else decode(what)] = fence

    def has(self, job_id: str, type_: str, fence: str) -> bool:
        """Return whether a claim goes back instead of being started."""
        whats = (addresses.ALL, addresses.type_address(type_), *([_KEYS] if marks.has_key(job_id) else []))
        return any(int(fence) <= self._up_to.get(what, 0) for what in whats)

    def clear(self) -> None:
        """Forget all: the server counts anew, or has taken the claims from before."""
        self._up_to.clear()
