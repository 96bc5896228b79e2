"""What has happened to the jobs of each type: counts that only grow, and the times that jobs waited and ran."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..rules import metrics
from ..rules.encoding import encode
from ..rules.metrics import Times, times_of
from ..rules.rows import number_of
from ..server.reader import Reader, as_text


@dataclass(frozen=True)
class TypeMetrics:
    """What has happened to the jobs of a type since it has metrics: they go a day after its last worker.

    *published*: jobs, while live workers served the type. *queued*, *on_demand*: waits of the jobs that were claimed,
    a job that came back at each claim. *runs*: times in a slot. *ended*: jobs by how they ended.
    """

    type: str
    published: int = 0
    queued: Times = field(default_factory=Times)
    on_demand: Times = field(default_factory=Times)
    runs: Times = field(default_factory=Times)
    ended: Mapping[str, int] = field(default_factory=dict)

    @property
    def started(self) -> int:
        return self.queued.number + self.on_demand.number

    def since(self, before: "TypeMetrics") -> "TypeMetrics":
        """Return what came after *before*."""
        return TypeMetrics(
            self.type,
            _grown(self.published, before.published),
            self.queued.since(before.queued),
            self.on_demand.since(before.on_demand),
            self.runs.since(before.runs),
            {how: _grown(number, before.ended.get(how, 0)) for how, number in self.ended.items()},
        )


def _grown(now: int, before: int) -> int:
    return now - before if now >= before else now


def metrics_of(reader: Reader, types: Iterable[str]) -> list[TypeMetrics]:
    """Return the metrics of *types*; none of a type without any."""
    named = list(types)
    rows = reader.ask([("hgetall", reader.key("metrics", encode(type_))) for type_ in named])
    return [_metrics_of_type(type_, as_text(row)) for type_, row in zip(named, rows, strict=True) if row]


def _metrics_of_type(type_: str, row: Mapping[str, str]) -> TypeMetrics:
    ended = {kind: times_of(row, kind).number for kind in metrics.RUNS}
    for how in metrics.OTHER_ENDS:
        ended[how] = ended.get(how, 0) + max(0, number_of(row.get(how)))
    return TypeMetrics(
        type_,
        sum(max(0, number_of(row.get(name))) for name in (metrics.PUBLISHED, metrics.PUBLISHED_BEFORE)),
        times_of(row, "queued"),
        times_of(row, "demand"),
        times_of(row, *metrics.RUNS),
        ended,
    )
