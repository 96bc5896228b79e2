"""The output of ``celery affinity lab replay`` for people."""

from ...lab.candidates import Candidate
from ...lab.replay import Replay, Why
from ..words import mode
from .text_of_waits import seconds, tables


def replay(found: Replay) -> str:
    kept = f"{found.kept:,} of {found.claims:,} claims in the recorded order on the recorded types"
    fidelity = (
        f"fidelity {found.fidelity:.2%}: {kept}" if found.claims else "fidelity unknown: the record has no claims"
    )
    lines = [f"{fidelity} (engine: {found.engine})"]
    if found.beyond_bound:
        lines.append(f"claims beyond the overtaking bound: {found.beyond_bound:,}; the bound allows none: report this")
    if found.first_difference is not None:
        lines.append(_why(found.first_difference))
    if found.claims and (found.still_waiting or found.still_waiting_replayed):
        waiting = f"{found.still_waiting:,} recorded, {found.still_waiting_replayed:,} replayed"
        lines.append(f"jobs still waiting as the record ended: {waiting}; waits are of the jobs claimed in the record")
    names = "recorded", "replayed"
    return "\n".join(lines) + "\n\n" + tables(found.recorded, found.replayed, names, "not compared")


def _why(why: Why) -> str:
    where = f"first difference: claim {why.nth + 1:,} of [{','.join(why.types)}], at {why.at_s:.3f} s, on {why.worker}"
    if why.replayed is None:
        return f"{where}: the replay has no such claim; recorded:\n{_candidate(why.recorded)}"
    if why.recorded is None:
        return f"{where}: the record has no such claim; replayed:\n{_candidate(why.replayed)}"
    return f"{where}\n  replayed: {_candidate(why.replayed)}\n  recorded: {_candidate(why.recorded)}"


def _candidate(job: Candidate | None) -> str:
    if job is None:
        return "no job"
    what = f"job {job.number} ({job.type}, {mode(job.on_demand)}, priority {job.priority})"
    if job.score is None:
        return f"{what}, {job.state}"
    terms = (
        f"priority {job.of_priority:,.1f}",
        f"age {job.of_age:,.1f}",
        f"rarity {job.of_rarity:,.1f}",
        f"on demand {job.of_on_demand:,.1f}",
    )
    return f"{what}, {job.state} after {seconds(job.waited_s)}, score {job.score:,.1f} = {' + '.join(terms)}"
