"""The measured values: part -> subject -> name of the number -> its value in each round."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

Figures = dict[str, list[float]]


class Subject(Protocol):
    """A measured subject. *baseline*: name of the subject to compare it with, or None."""

    @property
    def name(self) -> str: ...

    @property
    def baseline(self) -> str | None: ...


@dataclass(frozen=True)
class Named:
    """A subject that only has a name and a baseline."""

    name: str
    baseline: str | None = None


@dataclass
class Part:
    """The results of one part, such as `drain`."""

    #: Subject -> its numbers.
    figures: dict[str, Figures] = field(default_factory=dict)
    #: Subject -> its baseline, or None.
    baseline: dict[str, str | None] = field(default_factory=dict)

    def add(self, subject: Subject, figures: dict[str, float]) -> None:
        """Add the numbers of a round."""
        self.baseline[subject.name] = subject.baseline
        rounds = self.figures.setdefault(subject.name, {})
        for name, value in figures.items():
            rounds.setdefault(name, []).append(value)

    def extend(self, other: "Part") -> None:
        """Add the subjects of another part. No subject can be in both."""
        self.figures.update(other.figures)
        self.baseline.update(other.baseline)

    def names(self) -> list[str]:
        """Return the names of all numbers."""
        return list(dict.fromkeys(name for figures in self.figures.values() for name in figures))

    def rounds(self, subject: str, figure: str) -> list[float]:
        return self.figures.get(subject, {}).get(figure, [])

    def median(self, subject: str, figure: str) -> float | None:
        """Return the median of the rounds, or None if there are no rounds."""
        return _median(self.rounds(subject, figure))

    def ratios(self, subject: str, to: str | None, figure: str) -> list[float]:
        """Return the ratio for each round, whose two numbers were measured within seconds of each other."""
        pairs = zip(self.rounds(subject, figure), self.rounds(to or "", figure), strict=False)
        return [ours / theirs for ours, theirs in pairs if theirs]

    def ratio(self, subject: str, to: str | None, figure: str) -> float | None:
        """Return the median of the ratios, or None if there are no ratios."""
        return _median(self.ratios(subject, to, figure))


Results = dict[str, Part]


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def figure(part: str, name: str, subject: str) -> Callable[[Results], float | None]:
    """Return a function that computes the median of a number from results."""
    return lambda results: results[part].median(subject, name) if part in results else None


def ratio(part: str, name: str, subject: str, to: str) -> Callable[[Results], float | None]:
    """Return a function that computes the ratio of two subjects' numbers from results."""
    return lambda results: results[part].ratio(subject, to, name) if part in results else None
