"""What a recording costs the server, in instructions: ``python -m benchmarks.recorded_claim``."""

from collections.abc import Callable

from celery_affinity.rules.protocol import MOST_RECORDED
from celery_affinity.server import recordings
from celery_affinity.server.arguments import ClaimRow
from celery_affinity.server.replies import Claim
from tests.server.instructions.arrows import PENDING, Fleet
from tests.server.instructions.counter import CountedServer

_WARM_UP, _CALLS = 50, 5

_FACTS = '{"worker":"w","name":"name@host","types":["pdf"],"slots":1,"joined":1800000000000000,"since":0,"ended":200}'


def main() -> None:
    with CountedServer() as server:
        fleet = Fleet(server.client, pending=PENDING, slots=1)
        claims: list[Claim] = []

        def release() -> None:
            claims.append(fleet.held[0].claim)
            fleet.release()

        for _ in range(_WARM_UP):
            fleet.release()
        plain = _cost(server, release, MOST_RECORDED) + _cost(server, fleet.publish, MOST_RECORDED)
        print(f"a publish and a release: {plain:,.0f} instructions")
        recordings.begin(fleet.scheduler, "counted", for_s=3_600, kept_s=0)
        for what, lane, is_brought in (
            ("a busy slot", "queued.5", True),
            ("a slot that was free", "queued.5", False),
            ("a job with a rule", "", True),
        ):
            rows = [_row(nth, claim, lane, is_brought) for nth, claim in enumerate(claims, 1)]
            cost = _cost(server, lambda rows=rows: fleet.scheduler.record("counted", [(_FACTS, rows)]), _CALLS)  # type: ignore[misc]
            print(f"a recorded claim of {what}: {cost / len(rows):,.0f}, {cost / len(rows) / plain:.1%}")


def _row(nth: int, claim: Claim, lane: str, is_brought: bool) -> ClaimRow:
    """Return a row of the *nth* claim, which the release before its own has brought, or none."""
    brought_by = nth if is_brought else 0
    words = f"{claim.job_id} {claim.fence} {lane} {claim.type} {claim.enqueued_us} done 150000 150000 300000 301000"
    return ClaimRow(claim.job_id, claim.fence, brought_by, nth + 1, lane != "", f"{words} {brought_by} {nth + 1}")


def _cost(server: CountedServer, call: Callable[[], object], times: int) -> float:
    """Return the instructions of one of so many calls."""
    with server.window() as count:
        for _ in range(times):
            call()
    assert count.instructions is not None, "valgrind is installed"
    return count.instructions / times


if __name__ == "__main__":
    main()
