"""The numbers that are recorded, and what to say of a number that differs."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

RECORDED = Path(__file__).with_name("recorded.json")

#: By how much an arrow's instructions may differ from what is recorded. Measured again, they differ by 1 % at most.
ALLOWED = 0.02

#: By how many commands a call may differ: some arrows write metrics once in a while, by the clock.
ALLOWED_COMMANDS = 0.5

_TO_RECORD = "If that is what the change is worth, record it: make instructions ARGS=--record"


@dataclass(frozen=True)
class Cost:
    """What one job of a call costs. *instructions*: None without valgrind. *commands*: by name."""

    instructions: int | None
    commands: Mapping[str, float]

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
    """The recorded numbers: commands, which are those of any server, and instructions of each server's build."""

    def __init__(self, path: Path = RECORDED) -> None:
        self._path = path
        content = json.loads(path.read_text()) if path.exists() else {}
        self.commands: dict[str, dict[str, float]] = content.get("commands", {})
        self._instructions: dict[str, dict[str, int]] = content.get("instructions", {})

    def instructions(self, build: str) -> dict[str, int] | None:
        return self._instructions.get(build)

    def record(self, measured: Mapping[str, Costs]) -> list[str]:
        """Keep the costs of each build, and these alone. Return the builds whose numbers were dropped: they are old."""
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
        """Return a line for each arrow whose cost is another one than is recorded, and how to record it."""
        lines = [*self._other_instructions(build, costs), *self._other_commands(costs)]
        return [*lines, _TO_RECORD] if lines else []

    def not_compared(self, build: str, costs: Costs) -> str:
        """Return why only commands are compared; "" if instructions are as well."""
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
