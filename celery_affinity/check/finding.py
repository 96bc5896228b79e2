"""The findings of a check, and their levels."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Severity. Error: jobs are lost, stuck or rejected, now or later. Warning: a risk. Note: good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


#: Level of every possible finding, by id. The how-to on `check` describes the fixes.
LEVELS = {
    # the app
    "settings-names": Level.ERROR,
    "transport": Level.ERROR,
    "broker-url": Level.ERROR,
    "settings": Level.ERROR,
    "option-misspelt": Level.ERROR,
    "not-sent": Level.ERROR,
    "not-recurring": Level.ERROR,
    "task-misspelt": Level.WARNING,
    "task-of-no-name": Level.NOTE,
    "backend-unknown": Level.ERROR,
    "backend-fails": Level.ERROR,
    "backend-down": Level.ERROR,
    "imports": Level.ERROR,
    "unknown-option": Level.WARNING,
    "void-options": Level.NOTE,
    "priority-order": Level.WARNING,
    "priority-range": Level.WARNING,
    "prefetch": Level.NOTE,
    "cancel-on-loss": Level.WARNING,
    "tls-unverified": Level.WARNING,
    "results-never-expire": Level.WARNING,
    "results-share-memory": Level.NOTE,
    "merges-twice": Level.WARNING,
    "batches-small": Level.WARNING,
    "hiredis": Level.NOTE,
    # the server
    "broker-down": Level.ERROR,
    "server-unknown": Level.NOTE,
    "server-too-old": Level.ERROR,
    "server-untested": Level.WARNING,
    "cluster": Level.WARNING,
    "cluster-results": Level.ERROR,
    "cluster-no-replica": Level.WARNING,
    "cluster-lists": Level.NOTE,
    "replica": Level.ERROR,
    "schema": Level.ERROR,
    "cohorts-differ": Level.ERROR,
    "eviction": Level.ERROR,
    "memory-full": Level.ERROR,
    "memory-nearly-full": Level.WARNING,
    "memory-unlimited": Level.NOTE,
    "persistence-off": Level.WARNING,
    "snapshots-only": Level.NOTE,
    "persistence-fails": Level.ERROR,
    "connections-nearly-full": Level.WARNING,
    "clock-here": Level.WARNING,
    "clock-stepped": Level.WARNING,
    # the workers
    "remote-control": Level.WARNING,
    "no-workers": Level.WARNING,
    "stock-worker": Level.WARNING,
    "worker-elsewhere": Level.WARNING,
    "worker-mute": Level.NOTE,
    "worker-silent": Level.WARNING,
    "worker-stalled": Level.WARNING,
    "worker-idle": Level.WARNING,
    "namesakes": Level.WARNING,
    "no-guard": Level.NOTE,
    "affinity-versions": Level.WARNING,
    "versions": Level.NOTE,
    "clock-worker": Level.WARNING,
    # the jobs
    "type-waits": Level.ERROR,
    "left-to-celery": Level.WARNING,
    "type-unserved": Level.WARNING,
    "type-misspelt": Level.WARNING,
    "bound-of-no-type": Level.WARNING,
    "reserve-of-no-type": Level.WARNING,
    "limit-of-no-type": Level.WARNING,
    "limit-of-no-key": Level.NOTE,
    "bound-full": Level.ERROR,
    "tenants-promised-too-much": Level.WARNING,
    "tenant-misspelt": Level.WARNING,
    "tenant-not-filled": Level.ERROR,
    "tenant-without-value": Level.NOTE,
    "hints-without-effect": Level.NOTE,
    "preemptible-without-tenant": Level.NOTE,
    "preemptible-not-stopped": Level.NOTE,
    "key-in-cohorts": Level.ERROR,
    "key-used-in-cohorts": Level.WARNING,
    "cohort-down": Level.ERROR,
    "stock-messages": Level.ERROR,
    "stock-producer": Level.NOTE,
    "nobody-ticks": Level.ERROR,
    "dead-letters": Level.WARNING,
    "unserved": Level.NOTE,
    "reserve-too-large": Level.WARNING,
    "settings-differ": Level.WARNING,
    "settings-changed": Level.NOTE,
    "settings-damaged": Level.WARNING,
}


@dataclass(frozen=True)
class Finding:
    """A problem or risk. Raises KeyError for an unknown id."""

    id: str
    #: Description of the problem, one or two sentences.
    what: str
    #: Fix, one or two sentences.
    todo: str

    def __post_init__(self) -> None:
        if self.id not in LEVELS:
            raise KeyError(self.id)

    @property
    def level(self) -> Level:
        return LEVELS[self.id]


def with_full_stop(words: object) -> str:
    """Return the error text *words* with exactly one full stop at the end."""
    return f"{str(words).rstrip('.')}."


def join_names(names: Iterable[str], most: int = 5) -> str:
    """Return *names* as a list for people. Names after the first *most* are only counted."""
    all_names = list(names)
    shown = ", ".join(all_names[:most])
    return f"{shown} and {len(all_names) - most} more" if len(all_names) > most else shown
