"""Text output of ``celery affinity lab``: tables of waits and slots, and the outputs of its commands."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..lab.advise import Advice, Advised, Candidate
from ..lab.replay import Replay, WhatIf, WhyNotComparable
from ..lab.targets import ReachedTarget
from ..lab.waits import SlotUse, WaitGain, WaitReport, Waits
from ..reports.render import duration_text, format_table, mode_text, pluralize

if TYPE_CHECKING:
    from ..lab.optimum import Optimum  # needs the packages of the extra [lab]

_NONE = Waits(0, 0)


def waits_tables(
    before: WaitReport, after: WaitReport, names: tuple[str, str], unclaimed: str = "never started"
) -> str:
    """Return the waits by type, mode and tenant, followed by the use of slots.

    *names* are the names of the two reports, and *unclaimed* is the heading for jobs without a wait.
    """
    head = ("", "jobs", *(f"{quantile} {name}" for quantile in ("p50", "p95", "max") for name in names), unclaimed)
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
    jobs = _change_of_count(before.jobs + before.unclaimed, after.jobs + after.unclaimed)
    return (
        name,
        jobs,
        *(seconds_text(wait_s) for pair in pairs for wait_s in pair),
        _change_of_count(before.unclaimed, after.unclaimed),
    )


def _change_of_count(before: int, after: int) -> str:
    return f"{after:,}" if before == after else f"{before:,} -> {after:,}"


def seconds_text(wait_s: float | None) -> str:
    """Return a wait as text, in milliseconds if it is short."""
    if wait_s is None:
        return "-"
    return f"{wait_s * 1000:.0f} ms" if wait_s < 0.1 else duration_text(wait_s)


def _uses(before: WaitReport, after: WaitReport) -> list[Sequence[str]]:
    old, new = ({use.types: use for use in report.slots} for report in (before, after))
    return [_use(types, old.get(types), new.get(types)) for types in dict.fromkeys((*old, *new))]


def _use(types: Sequence[str], before: SlotUse | None, after: SlotUse | None) -> Sequence[str]:
    numbers = ("-" if use is None else str(use.slots) for use in (before, after))
    shares = ("-" if use is None else f"{use.share:.0%}" for use in (before, after))
    return f"[{','.join(types)}]", *numbers, *shares


def advise_text(advised: Advised) -> str:
    return "\n".join([*_advice_lines(advised), "", _simulations(advised)])


def _advice_lines(advised: Advised) -> list[str]:
    if advised.unreached:
        return [*advised.unreached]
    waits = ", ".join(f"{target.target} is {_wait(target.now_s)}" for target in advised.now)
    if advised.already:
        others = "fewer would do:" if advised.advice else "no slot could go"
        return [f"reached already: {waits}", others, *_all_advice(advised)]
    if not advised.advice:
        return [f"nothing was found that reaches the targets: {waits}"]
    return _all_advice(advised)


def _all_advice(advised: Advised) -> list[str]:
    lines = []
    for number, advice in enumerate(advised.advice):
        lines += [*(["or"] if number else []), *_one_advice(advice)]
    return lines


def _one_advice(advice: Advice) -> list[str]:
    first, *others = advice.targets
    lines = [f"{_change(advice)}: {_waits(first)}"]
    if others:
        lines = [_change(advice), *(f"  {target.target}: {_waits(target)}" for target in advice.targets)]
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


def _waits(target: ReachedTarget) -> str:
    over_days = f" ({_wait(target.low_s)}..{_wait(target.high_s)})"
    return f"{_wait(target.now_s)} -> {_wait(target.then_s)}{over_days}"


def _wait(wait_s: float | None) -> str:
    return "never" if wait_s is None else seconds_text(wait_s)


def _simulations(advised: Advised) -> str:
    made = pluralize(advised.simulations, "simulation")
    if advised.complete:
        return f"({made})"
    on_days = f"{advised.kept} of them for days drawn again"
    return (
        f"({made}: the limit of {advised.allowed:,}, {on_days}, ended the search. "
        "More --simulations may find better advice)"
    )


_HEAD = ("schedule", "mean weighted wait", "of the upper bound", "of the lower bound")


def optimum_text(optimum: "Optimum") -> str:
    waits = [
        ("recorded", optimum.recorded_s),
        ("replayed", optimum.replayed_s),
        ("upper bound: the best schedule found", optimum.upper_s),
        (f"lower bound: {optimum.bound}", optimum.lower_s),
    ]
    rows = [
        (name, seconds_text(wait_s), _times(wait_s, optimum.upper_s), _times(wait_s, optimum.lower_s))
        for name, wait_s in waits
        if wait_s is not None
    ]
    left_out = f"; {optimum.left_out:,} left out, which some schedule did not claim" if optimum.left_out else ""
    return f"{optimum.jobs:,} jobs{left_out}\n\n{format_table(_HEAD, rows)}\n\n{_lower(optimum)}\n{_sentence(optimum)}"


def _times(wait_s: float, bound_s: float) -> str:
    return "-" if bound_s <= 0 else f"{wait_s / bound_s:.2f}"


def _sentence(optimum: "Optimum") -> str:
    if optimum.replayed_s <= 0:
        return "No job waits in the replay: there is nothing to improve."
    if optimum.replayed_at_most is None:
        return "The lower bound says nothing: perhaps no job needs to wait."
    low, high = optimum.replayed_at_least or 1, optimum.replayed_at_most
    return f"The replayed schedule waits between {low:.2f} and {high:.2f} times as long as the best possible one."


def _lower(optimum: "Optimum") -> str:
    """Return the lower bounds as text. The highest is the effective one."""
    bounds_s = {**optimum.lower_bounds_s}
    prices = (
        f"prices in {optimum.bins:,} steps of {seconds_text(optimum.bin_s)}: "
        f"{seconds_text(max(0.0, bounds_s.pop('prices')))}"
    )
    others = [f"{name}: {seconds_text(max(0.0, bound_s))}" for name, bound_s in bounds_s.items() if bound_s > 0]
    return f"Lower bounds: {'; '.join([prices, *others])}."


def replay_text(replay: Replay) -> str:
    kept = f"{replay.kept:,} of {replay.claims:,} claims in the recorded order on the recorded types"
    fidelity = (
        f"fidelity {replay.fidelity:.2%}: {kept}" if replay.claims else "fidelity unknown: the record has no claims"
    )
    lines = [f"{fidelity} (engine: {replay.engine})"]
    if replay.beyond_bound:
        lines.append(f"claims beyond the overtaking bound: {replay.beyond_bound:,}; the bound allows none: report this")
    if replay.first_difference is not None:
        lines.append(_why(replay.first_difference))
    if replay.claims and (replay.still_waiting or replay.still_waiting_replayed):
        waiting = f"{replay.still_waiting:,} recorded, {replay.still_waiting_replayed:,} replayed"
        lines.append(f"jobs still waiting as the record ended: {waiting}; waits are of the jobs claimed in the record")
    names = "recorded", "replayed"
    return "\n".join(lines) + "\n\n" + waits_tables(replay.recorded, replay.replayed, names, "not compared")


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
    text = f"job {job.number} ({job.type}, {mode_text(job.on_demand)}, priority {job.priority})"
    if job.score is None:
        return f"{text}, {job.state}"
    terms = (
        f"priority {job.of_priority:,.1f}",
        f"age {job.of_age:,.1f}",
        f"rarity {job.of_rarity:,.1f}",
        f"on demand {job.of_on_demand:,.1f}",
    )
    return f"{text}, {job.state} after {seconds_text(job.waited_s)}, score {job.score:,.1f} = {' + '.join(terms)}"


#: Maximum number of rows in the table of gains, and in the table of losses.
_MAX_ROWS = 8


def whatif_text(whatif: WhatIf) -> str:
    gaining = [gain for gain in whatif.gains if gain.mean_s > 0][:_MAX_ROWS]
    losing = [gain for gain in reversed(whatif.gains) if gain.mean_s < 0][:_MAX_ROWS]
    parts = [
        waits_tables(whatif.before, whatif.after, ("before", "after")),
        _gains_table("gain", gaining),
        _gains_table("lose", losing),
    ]
    return "\n\n".join(parts) + f"\n\n(engine: {whatif.engine})"


def _gains_table(verb: str, gains: Sequence[WaitGain]) -> str:
    if not gains:
        return f"nobody {verb}s"
    rows = [
        (
            gain.type,
            mode_text(gain.on_demand),
            gain.tenant or "-",
            f"{seconds_text(gain.before.mean_s)} -> {seconds_text(gain.after.mean_s)}",
            f"{gain.shorter:,}",
            f"{gain.longer:,}",
        )
        for gain in gains
    ]
    return format_table((f"who {verb}s", "mode", "tenant", "mean wait", "wait less", "wait longer"), rows)
