"""Warnings of reserves for which a type has no more slots than they keep free."""

from ..log_limit import limited_logger
from ..observe.reserves import Reserved, too_large
from ..server.reader import Reader

logger = limited_logger(__name__)


class ReserveWarnings:
    """Warns once of each reserve that is too large, and again if it is after it was not."""

    def __init__(self) -> None:
        self._known: set[Reserved] = set()

    def warn(self, reader: Reader) -> None:
        found = {*too_large(reader)}
        for each in sorted(found - self._known, key=str):
            logger.warning("%s Lower the reserve, or start more workers.", each.sentence)
        self._known = found
