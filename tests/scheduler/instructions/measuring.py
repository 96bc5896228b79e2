"""The costs of the arrows of a fleet, on a server of their own."""

from itertools import chain

from .arrows import FLEETS, WARM_UP, Arrow
from .counter import CountedServer
from .recorded import Cost, Recorded

#: Maximum number of measurements of a fleet whose costs differ from the recorded ones.
TIMES = 3


def costs(fleet: str, executable: str | None, *, in_cluster: bool = False) -> dict[str, Cost]:
    """Return the cost of each arrow of a fleet, by its name, on Valkey or another server, or on a node of a cluster."""
    with CountedServer(executable, in_cluster=in_cluster) as server:
        arrows = FLEETS[fleet](server.client)
        first = next(arrows)  # fills the database, before the first window: a server that counts is slow
        return {arrow.name: _cost(server, arrow) for arrow in chain([first], arrows)}


def _cost(server: CountedServer, arrow: Arrow) -> Cost:
    for _ in range(WARM_UP // arrow.jobs):
        arrow.call()
    with server.window() as count:
        for _ in range(arrow.calls):
            arrow.call()
    jobs = arrow.calls * arrow.jobs
    instructions = None if count.instructions is None else round(count.instructions / jobs)
    return Cost(instructions, {name: round(times / jobs, 2) for name, times in sorted(count.commands.items())})


def differences(fleet: str, executable: str | None, build: str, recorded: Recorded) -> tuple[list[str], str]:
    """Return a line for each arrow of a fleet whose cost is another one than is recorded, and what was not compared.

    What seems to differ is measured again: Lua collects its garbage in large parts, of which a run has more or fewer.
    """
    found = [costs(fleet, executable)]
    lines = recorded.differences(build, found[0])
    while lines and len(found) < TIMES:
        found.append(costs(fleet, executable))
        lines = recorded.differences(build, {name: min(cost[name] for cost in found) for name in found[0]})
    return lines, recorded.not_compared(build, found[0])
