"""The recorded costs, and the messages about different costs."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

RECORDED = Path(__file__).with_name("recorded.json")

#: Accepted relative difference between measured and recorded instructions. Repeated measurements differ by up to 1 %.
ALLOWED = 0.02

#: Accepted difference of commands per invocation: some functions write metrics only periodically, by the clock.
ALLOWED_COMMANDS = 0.5

_TO_RECORD = "If that is what the change is worth, record it: make instructions ARGS=--record"


@dataclass(frozen=True)
class Cost:
    """The cost of one job in an invocation."""

    instructions: int | None  #: None without valgrind
    commands: Mapping[str, float]  #: number of calls by name

    def __lt__(self, other: "Cost") -> bool:
        return self._size < other._size

    @property
    def _size(self) -> tuple[float, float]:
        return self.instructions or 0, self.commands_in_all

    @property
    def commands_in_all(self) -> float:
        return round(sum(self.commands.values()), 2)


Costs = Mapping[str, Cost]


class Recorded:
    """The recorded numbers: commands, equal for all servers, and instructions per server build."""

    def __init__(self, path: Path = RECORDED) -> None:
        self._path = path
        content = json.loads(path.read_text()) if path.exists() else {}
        self.commands: dict[str, dict[str, float]] = content.get("commands", {})
        self._instructions: dict[str, dict[str, int]] = content.get("instructions", {})

    def instructions(self, build: str) -> dict[str, int] | None:
        return self._instructions.get(build)

    def record(self, measured: Mapping[str, Costs]) -> list[str]:
        """Record only the costs of these builds. Return the builds whose old numbers were dropped."""
        dropped = sorted(self._instructions.keys() - measured)
        self.commands = {
            name: dict(sorted(cost.commands.items())) for name, cost in next(iter(measured.values())).items()
        }
        self._instructions = {
            build: {name: cost.instructions for name, cost in costs.items() if cost.instructions is not None}
            for build, costs in measured.items()
        }
        content = {"commands": self.commands, "instructions": self._instructions}
        self._path.write_text(json.dumps(content, indent=1) + "\n")
        return dropped

    @property
    def names(self) -> set[str]:
        return set(self.commands).union(*self._instructions.values())

    def differences(self, build: str, costs: Costs) -> list[str]:
        """Return a line per function with a different cost, and the command that records the new cost."""
        lines = [*self._other_instructions(build, costs), *self._other_commands(costs)]
        return [*lines, _TO_RECORD] if lines else []

    def not_compared(self, build: str, costs: Costs) -> str:
        """Return why only commands are compared, or "" if instructions are compared too."""
        if any(cost.instructions is None for cost in costs.values()):
            return "valgrind is not installed: commands are compared, and no instructions"
        if self.instructions(build) is None:
            known = ", ".join(self._instructions) or "none"
            return (
                f"no instructions are recorded of {build}, but of: {known}. Only commands are compared. To compare "
                "instructions as well: `make instructions ARGS=--record` before a change, `make instructions` after it"
            )
        return ""

    def _other_instructions(self, build: str, costs: Costs) -> Iterator[str]:
        recorded = self.instructions(build)
        if recorded is None:
            return
        for name, cost in costs.items():
            now, before = cost.instructions, recorded.get(name)
            if now is None:
                continue
            if before is None:
                yield f"{name}: {now:,} instructions, and none are recorded"
            elif abs(now / before - 1) > ALLOWED:
                more = "more" if now > before else "fewer"
                yield (
                    f"{name}: {now:,} instructions, {abs(now / before - 1):.1%} {more} than the {before:,} that are "
                    f"recorded of {build}; {ALLOWED:.0%} are allowed"
                )

    def _other_commands(self, costs: Costs) -> Iterator[str]:
        for name, cost in costs.items():
            before = self.commands.get(name)
            if before is None:
                yield f"{name}: {cost.commands_in_all:g} commands, and none are recorded"
                continue
            if abs(cost.commands_in_all - sum(before.values())) > ALLOWED_COMMANDS:
                changes = {each: cost.commands.get(each, 0) - before.get(each, 0) for each in {*cost.commands, *before}}
                which = ", ".join(f"{n:+.2g} {each}" for each, n in sorted(changes.items()) if abs(n) > 0.1)
                yield f"{name}: {cost.commands_in_all:g} commands, {sum(before.values()):g} are recorded ({which})"
