"""The output of ``celery affinity lab whatif`` for people."""

from collections.abc import Sequence

from ...lab.gains import Gain
from ...lab.whatif import WhatIf
from ..words import mode, table
from .text_of_waits import seconds, tables

#: Rows of who gains, and of who loses.
_MOST_ROWS = 8


def whatif(found: WhatIf) -> str:
    gaining = [each for each in found.gains if each.mean_s > 0][:_MOST_ROWS]
    losing = [each for each in reversed(found.gains) if each.mean_s < 0][:_MOST_ROWS]
    parts = [tables(found.before, found.after, ("before", "after")), _who("gain", gaining), _who("lose", losing)]
    return "\n\n".join(parts) + f"\n\n(engine: {found.engine})"


def _who(verb: str, gains: Sequence[Gain]) -> str:
    if not gains:
        return f"nobody {verb}s"
    rows = [
        (
            each.type,
            mode(each.on_demand),
            each.tenant or "-",
            f"{seconds(each.before.mean_s)} -> {seconds(each.after.mean_s)}",
            f"{each.shorter:,}",
            f"{each.longer:,}",
        )
        for each in gains
    ]
    return table((f"who {verb}s", "mode", "tenant", "mean wait", "wait less", "wait longer"), rows)
