"""Waits and the use of slots before and after, or recorded and replayed, as tables for people.

The output of ``celery affinity lab advise`` for people.

The output of ``celery affinity lab optimum`` for people.

The output of ``celery affinity lab replay`` for people.

The output of ``celery affinity lab whatif`` for people.
"""

from collections.abc import Mapping, Sequence

from ..lab.advise import Advice, Advised, Candidate
from ..lab.optimum import Optimum
from ..lab.replay import Replay, WhatIf, WhyNotComparable
from ..lab.targets import ReachedTarget
from ..lab.waits import SlotUse, WaitGain, WaitReport, Waits
from .render import duration_text, format_table, mode_text, pluralize

_NONE = Waits(0, 0)


def waits_tables(
    before: WaitReport, after: WaitReport, names: tuple[str, str], unclaimed: str = "never started"
) -> str:
    """Return the waits by type, mode and tenant, then the use of slots. *names*: of the two reports.

    *unclaimed*: heads the numbers of jobs without a wait.
    """
    head = ("", "jobs", *(f"{what} {name}" for what in ("p50", "p95", "max") for name in names), unclaimed)
    all_start = before.all.unclaimed == after.all.unclaimed == 0
    rows = [
        *_rows({"all": before.all}, {"all": after.all}),
        *_rows(before.types, after.types),
        *_rows(before.modes, after.modes),
        *_rows(before.tenants, after.tenants, "tenant "),
    ]
    used = format_table(
        ("slots", *(f"{word} {name}" for word in ("number", "used") for name in names)), _uses(before, after)
    )
    columns = len(head) - all_start
    return f"{format_table(head[:columns], [row[:columns] for row in rows])}\n\n{used}"


def _rows(before: Mapping[str, Waits], after: Mapping[str, Waits], prefix: str = "") -> list[Sequence[str]]:
    names = dict.fromkeys((*before, *after))
    return [_row(prefix + name, before.get(name, _NONE), after.get(name, _NONE)) for name in names]


def _row(name: str, before: Waits, after: Waits) -> Sequence[str]:
    pairs = ((before.p50_s, after.p50_s), (before.p95_s, after.p95_s), (before.max_s, after.max_s))
    jobs = _two(before.jobs + before.unclaimed, after.jobs + after.unclaimed)
    return name, jobs, *(seconds_text(each) for pair in pairs for each in pair), _two(before.unclaimed, after.unclaimed)


def _two(before: int, after: int) -> str:
    return f"{after:,}" if before == after else f"{before:,} -> {after:,}"


def seconds_text(wait_s: float | None) -> str:
    """Return a wait in words, in milliseconds if it is short."""
    if wait_s is None:
        return "-"
    return f"{wait_s * 1000:.0f} ms" if wait_s < 0.1 else duration_text(wait_s)


def _uses(before: WaitReport, after: WaitReport) -> list[Sequence[str]]:
    ours, theirs = ({each.types: each for each in report.slots} for report in (before, after))
    return [_use(types, ours.get(types), theirs.get(types)) for types in dict.fromkeys((*ours, *theirs))]


def _use(types: Sequence[str], before: SlotUse | None, after: SlotUse | None) -> Sequence[str]:
    numbers = ("-" if each is None else str(each.slots) for each in (before, after))
    shares = ("-" if each is None else f"{each.share:.0%}" for each in (before, after))
    return f"[{','.join(types)}]", *numbers, *shares


def advise_text(found: Advised) -> str:
    return "\n".join([*_lines(found), "", _simulations(found)])


def _lines(found: Advised) -> list[str]:
    if found.unreached:
        return [*found.unreached]
    lines = []
    if found.already:
        lines.append("reached already: " + ", ".join(f"{each.target} is {_wait(each.now_s)}" for each in found.now))
        lines += ["fewer would do:" if found.advice else "no slot could go", *_pieces(found)]
        return lines
    if not found.advice:
        wait = ", ".join(f"{each.target} is {_wait(each.now_s)}" for each in found.now)
        return [f"nothing was found that reaches the targets: {wait}"]
    return _pieces(found)


def _pieces(found: Advised) -> list[str]:
    lines = []
    for number, each in enumerate(found.advice):
        lines += [*(["or"] if number else []), *_piece(each)]
    return lines


def _piece(advice: Advice) -> list[str]:
    first, *others = advice.targets
    lines = [f"{_change(advice)}: {_waits(first)}"]
    if others:
        lines = [_change(advice), *(f"  {each.target}: {_waits(each)}" for each in advice.targets)]
    lines.append(f"  mean wait of all jobs: {seconds_text(advice.mean_now_s)} -> {seconds_text(advice.mean_then_s)}")
    if advice.days:
        lines.append(f"  {advice.days_reached} of {advice.days} days drawn again reach the targets")
    return lines


def _change(advice: Advice) -> str:
    words = [
        f"{abs(number)} {'more' if number > 0 else 'fewer'} [{','.join(profile)}] slot{'' if abs(number) == 1 else 's'}"
        for profile, number in advice.slots
    ]
    if advice.settings:
        words.append(f"affinity settings set {advice.settings}")
    return ", ".join(words) or "nothing"


def _waits(each: ReachedTarget) -> str:
    over_days = f" ({_wait(each.low_s)}..{_wait(each.high_s)})"
    return f"{_wait(each.now_s)} -> {_wait(each.then_s)}{over_days}"


def _wait(wait_s: float | None) -> str:
    return "never" if wait_s is None else seconds_text(wait_s)


def _simulations(found: Advised) -> str:
    made = pluralize(found.simulations, "simulation")
    if found.complete:
        return f"({made})"
    kept = f"{found.kept} of them for days drawn again"
    return (
        f"({made}: the limit of {found.allowed:,}, {kept}, ended the search. More --simulations may find better advice)"
    )


_HEAD = ("schedule", "mean weighted wait", "of the upper bound", "of the lower bound")


def optimum_text(found: Optimum) -> str:
    waits = [
        ("recorded", found.recorded_s),
        ("replayed", found.replayed_s),
        ("upper bound: the best schedule found", found.upper_s),
        (f"lower bound: {found.bound}", found.lower_s),
    ]
    rows = [
        (name, seconds_text(wait_s), _times(wait_s, found.upper_s), _times(wait_s, found.lower_s))
        for name, wait_s in waits
        if wait_s is not None
    ]
    left_out = f"; {found.left_out:,} left out, which some schedule did not claim" if found.left_out else ""
    return f"{found.jobs:,} jobs{left_out}\n\n{format_table(_HEAD, rows)}\n\n{_lower(found)}\n{_sentence(found)}"


def _times(wait_s: float, bound_s: float) -> str:
    return "-" if bound_s <= 0 else f"{wait_s / bound_s:.2f}"


def _sentence(found: Optimum) -> str:
    if found.replayed_s <= 0:
        return "No job waits in the replay: there is nothing to improve."
    if found.replayed_at_most is None:
        return "The lower bound says nothing: perhaps no job needs to wait."
    low, high = found.replayed_at_least or 1, found.replayed_at_most
    return f"The replayed schedule waits between {low:.2f} and {high:.2f} times as long as the best possible one."


def _lower(found: Optimum) -> str:
    """Return the lower bounds, of which the highest counts."""
    said = {**found.lower_bounds_s}
    prices = (
        f"prices in {found.bins:,} steps of {seconds_text(found.bin_s)}: {seconds_text(max(0.0, said.pop('prices')))}"
    )
    others = [f"{name}: {seconds_text(max(0.0, bound_s))}" for name, bound_s in said.items() if bound_s > 0]
    return f"Lower bounds: {'; '.join([prices, *others])}."


def replay_text(found: Replay) -> str:
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
    return "\n".join(lines) + "\n\n" + waits_tables(found.recorded, found.replayed, names, "not compared")


def _why(why: WhyNotComparable) -> str:
    where = f"first difference: claim {why.nth + 1:,} of [{','.join(why.types)}], at {why.at_s:.3f} s, on {why.worker}"
    if why.replayed is None:
        return f"{where}: the replay has no such claim; recorded:\n{_candidate(why.recorded)}"
    if why.recorded is None:
        return f"{where}: the record has no such claim; replayed:\n{_candidate(why.replayed)}"
    return f"{where}\n  replayed: {_candidate(why.replayed)}\n  recorded: {_candidate(why.recorded)}"


def _candidate(job: Candidate | None) -> str:
    if job is None:
        return "no job"
    what = f"job {job.number} ({job.type}, {mode_text(job.on_demand)}, priority {job.priority})"
    if job.score is None:
        return f"{what}, {job.state}"
    terms = (
        f"priority {job.of_priority:,.1f}",
        f"age {job.of_age:,.1f}",
        f"rarity {job.of_rarity:,.1f}",
        f"on demand {job.of_on_demand:,.1f}",
    )
    return f"{what}, {job.state} after {seconds_text(job.waited_s)}, score {job.score:,.1f} = {' + '.join(terms)}"


#: Rows of who gains, and of who loses.
_MOST_ROWS = 8


def whatif_text(found: WhatIf) -> str:
    gaining = [each for each in found.gains if each.mean_s > 0][:_MOST_ROWS]
    losing = [each for each in reversed(found.gains) if each.mean_s < 0][:_MOST_ROWS]
    parts = [waits_tables(found.before, found.after, ("before", "after")), _who("gain", gaining), _who("lose", losing)]
    return "\n\n".join(parts) + f"\n\n(engine: {found.engine})"


def _who(verb: str, gains: Sequence[WaitGain]) -> str:
    if not gains:
        return f"nobody {verb}s"
    rows = [
        (
            each.type,
            mode_text(each.on_demand),
            each.tenant or "-",
            f"{seconds_text(each.before.mean_s)} -> {seconds_text(each.after.mean_s)}",
            f"{each.shorter:,}",
            f"{each.longer:,}",
        )
        for each in gains
    ]
    return format_table((f"who {verb}s", "mode", "tenant", "mean wait", "wait less", "wait longer"), rows)
