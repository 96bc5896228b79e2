"""Pauses in the log of a worker: when one begins that concerns the worker, and when it ends."""

from collections.abc import Collection

from redis.exceptions import ResponseError

from ..log_limit import limited_logger
from ..observe import sentences
from ..observe.type_rules import Pause, pauses
from ..server.reader import Reader

logger = limited_logger(__name__)


class PausesLog:
    """Logs the pauses of everything, of keys, and of the types that a worker serves."""

    def __init__(self) -> None:
        self._revision = 0
        self._known: dict[str, Pause] = {}

    def update(self, reader: Reader, revision: int, types: Collection[str]) -> None:
        """Read the pauses if *revision*, the settings', is new, and log what has changed for a worker of *types*."""
        if revision == self._revision:
            return
        self._revision = revision
        try:
            found = {str(each): each for each in pauses(reader) if each.kind != "type" or each.name in types}
        except ResponseError as exc:
            logger.warning("The pauses in Redis cannot be read, and are not logged: %s", exc)
            return
        before, self._known = self._known, found
        for name, each in found.items():
            if before.get(name) != each:
                logger.warning(_sentence(sentences.pause(each)))
        for name in before.keys() - found.keys():
            logger.info("%s %s no longer paused", _sentence(name), before[name].verb)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
