"""How long a job waited and ran, as far as its times are known. All times are Unix times; None: unknown."""


def waited_s(
    state: str, enqueued_s: float | None, due_s: float | None, claimed_s: float | None, ended_s: float | None
) -> float | None:
    """Return the time from the ETA, or the enqueue time, to the last claim, or to the end of a job that had none."""
    if state in ("scheduled", "pending"):  # it may have come back from a claim
        return None
    return _between(due_s or enqueued_s, claimed_s or ended_s)


def ran_s(claimed_s: float | None, started_s: float | None, ended_s: float | None) -> float | None:
    """Return the time from the start to the end; from the claim if the start is unknown, as that of short jobs is."""
    return _between(started_s or claimed_s, ended_s if claimed_s else None)


def _between(from_s: float | None, to_s: float | None) -> float | None:
    return None if from_s is None or to_s is None else max(0.0, to_s - from_s)
