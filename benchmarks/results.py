"""The measured values: part -> subject -> number -> its value in each round."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

Figures = dict[str, list[float]]


class Subject(Protocol):
    """Something that is measured. *beside*: the name of the subject that it is compared with, if there is one."""

    @property
    def name(self) -> str: ...

    @property
    def beside(self) -> str | None: ...


@dataclass(frozen=True)
class Named:
    """A subject that is compared with nothing."""

    name: str
    beside: str | None = None


@dataclass
class Part:
    """The numbers of each subject by its name, and what each is compared with."""

    figures: dict[str, Figures] = field(default_factory=dict)
    beside: dict[str, str | None] = field(default_factory=dict)

    def add(self, subject: Subject, figures: dict[str, float]) -> None:
        """Add a round."""
        self.beside[subject.name] = subject.beside
        noted = self.figures.setdefault(subject.name, {})
        for name, value in figures.items():
            noted.setdefault(name, []).append(value)

    def extend(self, other: "Part") -> None:
        """Add the subjects of another part, which are others."""
        self.figures.update(other.figures)
        self.beside.update(other.beside)

    def names(self) -> list[str]:
        """Return the names of all numbers."""
        return list(dict.fromkeys(name for figures in self.figures.values() for name in figures))

    def rounds(self, subject: str, figure: str) -> list[float]:
        return self.figures.get(subject, {}).get(figure, [])

    def median(self, subject: str, figure: str) -> float | None:
        """Return the median of the rounds; None if there are none."""
        return _median(self.rounds(subject, figure))

    def ratios(self, subject: str, to: str | None, figure: str) -> list[float]:
        """Return the ratio of each round: its two numbers were measured within seconds of each other."""
        pairs = zip(self.rounds(subject, figure), self.rounds(to or "", figure), strict=False)
        return [ours / theirs for ours, theirs in pairs if theirs]

    def ratio(self, subject: str, to: str | None, figure: str) -> float | None:
        """Return the median of the ratios; None if there are none."""
        return _median(self.ratios(subject, to, figure))


Results = dict[str, Part]


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def figure(part: str, name: str, subject: str) -> Callable[[Results], float | None]:
    """Return what finds the median of a number in results."""
    return lambda results: results[part].median(subject, name) if part in results else None


def ratio(part: str, name: str, subject: str, to: str) -> Callable[[Results], float | None]:
    """Return what finds the ratio of a number of *subject* to that of another in results."""
    return lambda results: results[part].ratio(subject, to, name) if part in results else None
