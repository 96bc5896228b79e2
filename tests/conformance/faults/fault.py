"""A fault: a text of a Lua file, and the text in its place."""

from pathlib import Path
from typing import NamedTuple

LUA = "celery_affinity/lua"
ROOT = Path(__file__).resolve().parents[3]


class Fault(NamedTuple):
    """*file*: below `LUA`, without its suffix. *old* must stand there exactly once; *new* replaces it.

    *found_by*: the test that notices a fault which random steps cannot meet; "": the conformance test.
    """

    file: str
    old: str
    new: str
    found_by: str = ""

    def broken(self) -> str:
        """Return the source of the file with the fault. Raises ValueError if *old* is not there exactly once."""
        source = (ROOT / LUA / f"{self.file}.lua").read_text()
        if source.count(self.old) != 1:
            raise ValueError(
                f"{self.file}.lua must have this text once, not {source.count(self.old)} times: {self.old}"
            )
        return source.replace(self.old, self.new)
