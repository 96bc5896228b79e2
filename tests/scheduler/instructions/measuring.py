"""Costs of the measured functions of a fleet, on a dedicated server."""

from itertools import chain

from .counter import CountedServer
from .functions import FLEETS, WARM_UP, MeasuredFunction
from .recorded import Cost, Recorded

#: Maximum number of measurements of a fleet whose costs differ from the recorded ones.
TIMES = 3


def costs(fleet: str, executable: str | None, *, in_cluster: bool = False) -> dict[str, Cost]:
    """Return the costs of a fleet's functions by name, on Valkey, another server or a cluster node."""
    with CountedServer(executable, in_cluster=in_cluster) as server:
        functions = FLEETS[fleet](server.client)
        first = next(functions)  # fills the database before the first window, because a server that counts is slow
        return {function.name: _cost(server, function) for function in chain([first], functions)}


def _cost(server: CountedServer, function: MeasuredFunction) -> Cost:
    for _ in range(WARM_UP // function.jobs):
        function.call()
    with server.window() as count:
        for _ in range(function.calls):
            function.call()
    jobs = function.calls * function.jobs
    instructions = None if count.instructions is None else round(count.instructions / jobs)
    return Cost(instructions, {name: round(times / jobs, 2) for name, times in sorted(count.commands.items())})


def differences(fleet: str, executable: str | None, build: str, recorded: Recorded) -> tuple[list[str], str]:
    """Return a line per function whose cost differs from the recorded cost, and the reason for missing comparisons.

    Different costs are measured again: Lua collects its garbage in large steps, whose number varies between runs.
    """
    found = [costs(fleet, executable)]
    lines = recorded.differences(build, found[0])
    while lines and len(found) < TIMES:
        found.append(costs(fleet, executable))
        lines = recorded.differences(build, {name: min(cost[name] for cost in found) for name in found[0]})
    return lines, recorded.not_compared(build, found[0])
