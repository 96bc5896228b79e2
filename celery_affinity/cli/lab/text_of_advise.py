"""The output of ``celery affinity lab advise`` for people."""

from ...lab.advise import Advice, Advised
from ...lab.shortfall import Reached
from ..words import many
from .text_of_waits import seconds


def advise(found: Advised) -> str:
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
    lines.append(f"  mean wait of all jobs: {seconds(advice.mean_now_s)} -> {seconds(advice.mean_then_s)}")
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


def _waits(each: Reached) -> str:
    over_days = f" ({_wait(each.low_s)}..{_wait(each.high_s)})"
    return f"{_wait(each.now_s)} -> {_wait(each.then_s)}{over_days}"


def _wait(wait_s: float | None) -> str:
    return "never" if wait_s is None else seconds(wait_s)


def _simulations(found: Advised) -> str:
    made = many(found.simulations, "simulation")
    if found.complete:
        return f"({made})"
    kept = f"{found.kept} of them for days drawn again"
    return (
        f"({made}: the limit of {found.allowed:,}, {kept}, ended the search. More --simulations may find better advice)"
    )
