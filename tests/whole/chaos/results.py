"""The results of a run, as JSON, as a table, and in the docs."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from .campaign import Outcome
from .storms import STORMS

BLOCK = "chaos"


@dataclass
class Figures:
    """The storms of one name together, or all storms of a run."""

    storms: int = 0
    accepted: int = 0
    runs: int = 0
    keyed: int = 0
    limited: int = 0
    pauses: int = 0
    calls: int = 0
    merged_runs: int = 0
    recurring: int = 0
    stops: int = 0
    refused: int = 0
    violations: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    overlaps: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        verdict = outcome.verdict
        self.storms += 1
        self.accepted += verdict.accepted
        self.runs += verdict.runs
        self.keyed += verdict.keyed
        self.limited += verdict.limited
        self.pauses += verdict.pauses
        self.calls += verdict.calls
        self.merged_runs += verdict.merged_runs
        self.recurring += verdict.recurring
        self.stops += verdict.stops
        self.refused += verdict.refused
        self.violations += len(verdict.violations)
        for mine, others in (
            (self.kills, outcome.kills),
            (self.faults, outcome.faults),
            (self.again, verdict.again),
            (self.lost, verdict.lost),
            (self.overlaps, verdict.overlaps),
        ):
            mine.update(others)


def summed_up(outcomes: list[Outcome], seed: str, seconds: int) -> dict:
    """Return the results of a run, in total and per storm."""
    total, by_storm = Figures(), {storm.name: Figures() for storm in STORMS}
    for outcome in outcomes:
        total.add(outcome)
        by_storm[outcome.storm].add(outcome)
    return {
        "seed": seed,
        "seconds": seconds,
        "total": vars(total),
        "storms": {name: vars(each) for name, each in by_storm.items() if each.storms},
        "outcomes": [{**vars(outcome), "verdict": vars(outcome.verdict)} for outcome in outcomes],
    }


def write(result: dict, directory: Path) -> None:
    (directory / "results.json").write_text(json.dumps(result, indent=2) + "\n")
    (directory / "results.md").write_text(as_markdown(result))


def as_markdown(result: dict) -> str:
    total = result["total"]
    what = {storm.name: storm.what for storm in STORMS}
    summary = (
        f"Seed {result['seed']}: {total['storms']} storms in {result['seconds'] / 60:.0f} minutes, "
        f"{total['accepted']:,} jobs accepted, {total['runs']:,} runs ({total['keyed']:,} with a key, "
        f"{total['limited']:,} under a limit of their type, or a reserve), {total['calls']:,} calls that merge in "
        f"{total['merged_runs']:,} runs, {total['recurring']:,} recurring calls, {total['pauses']} pauses, "
        f"{total['stops']:,} runs asked to stop for another tenant, "
        f"{sum(total['kills'].values())} kills "
        f"({_listed(total['kills'])}), {total['violations']} violations."
    )
    header = ("storm", "jobs", "kills", "run again, because", "not run to the end, because", "violations")
    rows = [header, ("---",) * len(header)]
    for name, each in result["storms"].items():
        rows.append(
            (
                f"**{name}** ({each['storms']}): {what[name]}",
                f"{each['accepted']:,}",
                str(sum(each["kills"].values())),
                _listed(each["again"]),
                _listed(_with_refused(each)),
                str(each["violations"]),
            )
        )
    return "\n".join([summary, "", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def in_a_line(outcome: Outcome) -> str:
    verdict = outcome.verdict
    facts = [
        f"{outcome.storm}: {outcome.seconds} s, quiet {outcome.quiet_after_s} s later",
        f"{verdict.accepted} jobs, {verdict.runs} runs",
        f"kills: {_listed(outcome.kills)}",
        f"faults: {_listed(outcome.faults)}",
        f"{verdict.keyed} runs with a key, {verdict.limited} under a limit or reserve, {verdict.pauses} pauses",
        f"{verdict.calls} calls that merge in {verdict.merged_runs} runs, {verdict.recurring} recurring calls",
        f"{verdict.stops} runs asked to stop, {verdict.hinted} jobs with a hint so far",
        f"overlaps: {_listed(verdict.overlaps)}",
        f"again: {_listed(verdict.again)}",
        f"lost: {_listed(verdict.lost)}",
    ]
    facts += [f"refused: {verdict.refused}"] if verdict.refused else []
    return "; ".join(facts) + (f"; {len(verdict.violations)} VIOLATIONS" if verdict.violations else "")


def _with_refused(counts: dict) -> dict[str, int]:
    refused = {"refused at the caller": counts["refused"]} if counts["refused"] else {}
    return {**counts["lost"], **refused}


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())) or "0"
