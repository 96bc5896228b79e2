"""How long jobs waited and ran lately: what metrics that only grow have grown by since a few minutes ago."""

from collections import deque
from collections.abc import Iterable
from typing import Any

from ...observe.type_metrics import TypeMetrics
from ...rules.metrics import Times

#: Shortest time, s, between two looks that are kept: each has a few hundred numbers a type.
_BETWEEN_S = 10.0


class RecentWaits:
    """The times of the last *kept_s* seconds, or since the first look."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._looks: deque[tuple[float, dict[str, TypeMetrics]]] = deque()

    def add(self, at_s: float, metrics: Iterable[TypeMetrics]) -> dict[str, Any]:
        """Add a look. Return the seconds that are compared, and a row for each type and mode: halves and 95 %."""
        now = {each.type: each for each in metrics}
        while len(self._looks) > 1 and at_s - self._looks[1][0] >= self._kept_s:
            self._looks.popleft()
        since_s, before = self._looks[0] if self._looks else (at_s, now)
        rows = [
            row for each in now.values() for row in _rows(each.since(before.get(each.type, TypeMetrics(each.type))))
        ]
        if not self._looks or at_s - self._looks[-1][0] >= _BETWEEN_S:
            self._looks.append((at_s, now))
        return {"seconds": at_s - since_s, "rows": rows}


def _rows(grown: TypeMetrics) -> list[dict[str, Any]]:
    found = []
    if grown.runs.number:
        found.append({"type": grown.type, "what": "run", **_shares(grown.runs)})
    for what, times in (("queued", grown.queued), ("on_demand", grown.on_demand)):
        if times.number:
            found.append({"type": grown.type, "what": what, **_shares(times)})
    return found


def _shares(times: Times) -> dict[str, Any]:
    return {"jobs": times.number, "p50_s": times.quantile(0.5), "p95_s": times.quantile(0.95)}
