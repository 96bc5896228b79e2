"""Summarize the health of the fleet in one line and a colour."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .render import duration_text, pluralize

if TYPE_CHECKING:
    from .status import Status

#: Maximum number of names that a sentence contains.
_MAX_NAMED = 3
#: A bounded type is nearly full from this share on.
_NEARLY_FULL = 0.9


@dataclass(frozen=True)
class Headline:
    """The health of the fleet. *level*: "good", "warning" if it needs attention, "bad" if jobs cannot run.

    *text*: a few short sentences.
    """

    level: Literal["good", "warning", "bad"]
    text: str


def headline_of(status: "Status") -> Headline:
    """Return the headline of *status*."""
    bad, warnings = list(_outages(status)), list(_warnings(status))
    are_all_paused = any(pause.kind == "all" for pause in status.pauses)
    served = "All types are served." if status.types else "No type has jobs or workers."
    facts = [] if bad or are_all_paused else [served]
    if status.wait_p95_s is not None:
        facts.append(f"p95 wait {duration_text(status.wait_p95_s)}.")
    dead = status.dead_last_hour
    facts.append(f"{pluralize(dead, 'dead letter')} in the last hour." if dead else "No dead letters in the last hour.")
    level: Literal["good", "warning", "bad"] = "bad" if bad else "warning" if warnings or dead else "good"
    return Headline(level, " ".join([*bad, *warnings, *facts]))


def _outages(status: "Status") -> list[str]:
    """Return the sentences about jobs that cannot run."""
    down = sorted(status.down or {})
    sentences = [f"{_named('cohort', down)} {'does' if len(down) == 1 else 'do'} not answer."] if down else []
    unserved = [type_.type for type_ in status.types if type_.unserved]
    if unserved and not status.workers:
        sentences.append("No worker is running.")
    elif unserved:
        sentences.append(f"No worker serves {_names(unserved)}.")
    lists = [row.queue for row in status.unserved_lists]
    return [*sentences, f"No worker takes the messages of {_names(lists)}."] if lists else sentences


def _warnings(status: "Status") -> list[str]:
    """Return the sentences about what needs attention."""
    full = [type_.type for type_ in status.types if type_.bound and type_.pending >= _NEARLY_FULL * type_.bound.most]
    paused = sorted(pause.name for pause in status.pauses if pause.kind != "all")
    are_all_paused = any(pause.kind == "all" for pause in status.pauses)
    growing = [type_.type for type_ in status.types if type_.trend and type_.trend.grows and not type_.unserved]
    stalled = sorted({worker.name for worker in status.workers if worker.stalled})
    slow = sorted({worker.name for worker in status.workers if worker.is_slow})
    sentences = {
        "All types are paused.": are_all_paused,
        f"Paused: {_names(paused)}.": paused,
        f"Nearly full: {_names(full)}.": full,
        f"Pending jobs grow: {_names(growing)}.": growing,
        f"Blocked event loop: {_names(stalled)}.": stalled,
        f"Slow: {_names(slow)}.": slow,
    }
    return [sentence for sentence, applies in sentences.items() if applies]


def _names(names: Sequence[str]) -> str:
    others = len(names) - _MAX_NAMED
    listed = ", ".join(names[:_MAX_NAMED])
    return f"{listed} and {others} more" if others > 0 else listed


def _named(noun: str, names: Sequence[str]) -> str:
    return f"{noun.capitalize()}{'' if len(names) == 1 else 's'} {_names(names)}"
