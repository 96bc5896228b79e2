"""Families of samples in Prometheus' text format, version 0.0.4."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

#: What a reply over HTTP says of such a text.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Sample:
    """*suffix*: what follows the family's name, as ``_bucket`` of a histogram."""

    suffix: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Family:
    """All samples of one metric. The name of a counter ends with ``_total``."""

    name: str
    help: str
    kind: Literal["gauge", "counter", "histogram"]
    samples: list[Sample] = field(default_factory=list)


def exposition(families: Iterable[Family]) -> str:
    return "".join(line + "\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {_escaped(family.help)}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        labels = ",".join(f'{name}="{_escaped(value, quoted=True)}"' for name, value in sample.labels.items())
        braces = f"{{{labels}}}" if labels else ""
        yield f"{family.name}{sample.suffix}{braces} {_number(sample.value)}"


def _escaped(text: str, *, quoted: bool = False) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quoted else escaped


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
