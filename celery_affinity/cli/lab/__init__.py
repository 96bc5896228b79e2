"""``celery -A proj affinity lab ...``: record a fleet, schedule the record again, ask "what if".

A new command is a row of `_MODULES`, which names the module that has it.
"""

import click

from ..loads_on_use import loading

#: Name of a command, as people type it -> the module that has it, in the order of `--help`.
_MODULES: dict[str, str] = {
    "replay": "replay",
    "whatif": "whatif",
    "advise": "advise",
    "optimum": "optimum",
    "record": "record",
}


@click.group(cls=loading(__name__, _MODULES))
def lab() -> None:
    """Record what the fleet does, schedule the record again, and ask what more slots or other settings would change."""
