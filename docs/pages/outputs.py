"""Outputs of commands, for their page: outputs.txt, which a test compares with what they print."""

from pathlib import Path

OUTPUTS = Path(__file__).with_name("outputs.txt")
PROMPT = "$ celery -A shop affinity "


def sections() -> list[tuple[str, str]]:
    """Return each command line with what it prints. "..." at the end stands for more."""
    found = [each.partition("\n") for each in OUTPUTS.read_text().split(PROMPT)[1:]]
    return [(PROMPT + line, printed.rstrip("\n")) for line, _, printed in found]


def of(names: tuple[str, ...], groups: frozenset[tuple[str, ...]]) -> str:
    """Return the examples of the command *names*, as Markdown; "" for none. *groups*: commands with commands."""
    shown = [f"{line}\n{printed}\n" for line, printed in sections() if _command(line, groups) == names]
    return "\nFor example:\n\n```text\n" + "\n".join(shown) + "```\n" if shown else ""


def _command(line: str, groups: frozenset[tuple[str, ...]]) -> tuple[str, ...]:
    first, *rest = line.removeprefix(PROMPT).split()
    if (first,) not in groups:
        return (first,)
    return (first, rest[0] if rest and not rest[0].startswith("-") else "list")
