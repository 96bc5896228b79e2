"""Measure the server cost of a recording in CPU instructions: ``python -m benchmarks.recorded_claim``."""

from collections.abc import Callable
from dataclasses import dataclass

from celery_affinity.scheduler import recordings
from celery_affinity.scheduler.messages import Claim, ClaimRow
from celery_affinity.schema.constants import MAX_RECORDED
from tests.scheduler.instructions.counter import CountedServer
from tests.scheduler.instructions.functions import PENDING, Fleet

_WARM_UP, _CALLS = 50, 5

_FACTS = '{"worker":"w","name":"name@host","types":["pdf"],"slots":1,"joined":1800000000000000,"since":0,"ended":200}'


@dataclass(frozen=True)
class _Kind:
    """A kind of job whose claims are recorded."""

    name: str
    pending: int
    #: Slots of the worker: one slot, or one slot per job.
    slots: int
    #: Rules of each job, as in `Fleet`.
    rules: str = ""


_KINDS = (
    _Kind("a busy slot", PENDING, 1),
    _Kind("a slot that was free", 0, MAX_RECORDED + _WARM_UP),
    _Kind("a job of a tenant", PENDING, 1, "key=tenant%3At{} quota=settings"),
)


def main() -> None:
    with CountedServer() as server:
        for kind in _KINDS:
            server.client.flushall()
            _print(server, kind)


def _print(server: CountedServer, kind: _Kind) -> None:
    fleet = Fleet(server.client, pending=kind.pending, slots=kind.slots, rules=kind.rules, names=100)
    claims: list[Claim] = []

    def release() -> None:
        claims.append(fleet.held[0].claim)
        fleet.release()

    fleet.publish(_WARM_UP)
    fleet.take()
    for _ in range(_WARM_UP):
        fleet.release()
    plain = _cost(server, fleet.publish, MAX_RECORDED)
    fleet.take()
    plain += _cost(server, release, MAX_RECORDED)
    recordings.begin_recording(fleet.scheduler, "counted", for_s=3_600, kept_s=0)
    rows = [_row(nth, claim, kind) for nth, claim in enumerate(claims, 1)]
    cost = _cost(server, lambda: fleet.scheduler.record("counted", [(_FACTS, rows)]), _CALLS) / len(rows)
    print(
        f"a recorded claim of {kind.name}: {cost:,.0f} instructions, {cost / plain:.2%} of the {plain:,.0f} of its job"
    )


def _row(nth: int, claim: Claim, kind: _Kind) -> ClaimRow:
    """Return the row of the *nth* claim. If the slot was busy, the release of the previous job returned this claim."""
    brought_by, lane = nth if kind.pending else 0, "" if kind.rules else "queued.0"
    job_fields = (claim.type, lane, "done", "read")
    times = 150_000, 150_000, 300_000, 301_000
    return claim.job_id, claim.fence, job_fields, claim.enqueued_us, *times, brought_by, nth + 1, None


def _cost(server: CountedServer, call: Callable[[], object], times: int) -> float:
    """Return the number of instructions per call, averaged over *times* calls."""
    with server.window() as count:
        for _ in range(times):
            call()
    assert count.instructions is not None, "valgrind is installed"
    return count.instructions / times


if __name__ == "__main__":
    main()
