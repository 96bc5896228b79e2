"""What runs in a ``with`` block."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class RunsInWith(ABC):
    """Starts at the beginning of a ``with`` block, and stops at its end, also after an error."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
