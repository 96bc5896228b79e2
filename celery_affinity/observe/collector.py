"""Our metrics among those of a process that uses prometheus_client, as Flower does."""

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .exposition import Family
from .metric_list import METRICS, families
from .metrics import Metrics


class StatusCollector(Collector):
    """Collects what *latest* returns, which is None if the broker did not answer."""

    def __init__(self, latest: Callable[[], Metrics | None]) -> None:
        self._latest = latest

    def describe(self) -> Iterator[Metric]:
        """Return the families without samples: a registry asks for their names."""
        yield from (_metric(figure.family()) for figure in METRICS)

    def collect(self) -> Iterator[Metric]:
        yield from map(_metric, families(self._latest()))


def _metric(family: Family) -> Metric:
    name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
    metric = Metric(name, family.help, family.kind)
    suffix = "_total" if family.kind == "counter" else ""
    for sample in family.samples:
        metric.add_sample(name + suffix + sample.suffix, dict(sample.labels), sample.value)
    return metric
