"""Simulate a type whose jobs are distributed over shards by a hash: ``python -m benchmarks.shards``.

The model needs no server. Jobs arrive at random times (Poisson) and have random durations (exponential). The table
compares two ways to use the slots:

- kept: each shard keeps its share of the slots.
- moved: idle slots move to a shard with waiting jobs, like the slots of a worker with several cohorts.

A share of the jobs has a key. All jobs of a key are in one shard, and a few keys have most of the jobs (Zipf).
"""

import heapq
import random
from collections import deque
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Outcome:
    """The result of a simulation."""

    #: Median and 99th percentile of all waits.
    p50_s: float
    p99_s: float
    #: Maximum difference in arrival between a job and a later job that started before it.
    overtaken_s: float
    #: Share of the jobs in the shard with the most jobs.
    largest_share: float


def simulate(
    *,
    shards: int,
    slots: int = 64,
    load: float = 0.9,
    jobs: int = 20_000,
    keyed: float = 0.0,
    moves: bool,
    seed: int = 1,
) -> Outcome:
    """Simulate *jobs* jobs with a mean duration of 1 s.

    Args:
        load: average fraction of the slots that the jobs need.
        keyed: fraction of jobs with a key.
        moves: True if idle slots move to other shards.
    """
    rng = random.Random(seed)  # seeded, so that the result is repeatable
    weights = list(accumulate(1 / rank for rank in range(1, 1001)))
    free = [slots // shards] * shards
    waiting: list[deque[float]] = [deque() for _ in range(shards)]
    counts = [0] * shards
    ends: list[tuple[float, int]] = []
    starts: list[tuple[float, float]] = []
    now_s = 0.0

    def start(shard: int, arrived_s: float) -> None:
        free[shard] -= 1
        starts.append((arrived_s, now_s))
        heapq.heappush(ends, (now_s + rng.expovariate(1), shard))

    def serve() -> None:
        for shard in range(shards):
            while waiting[shard]:
                donor = max(range(shards), key=free.__getitem__)
                if moves and free[shard] <= 0 < free[donor]:
                    free[donor], free[shard] = free[donor] - 1, free[shard] + 1
                if free[shard] <= 0:
                    break
                start(shard, waiting[shard].popleft())

    for _ in range(jobs):
        arrives_s = now_s + rng.expovariate(load * slots)
        while ends and ends[0][0] <= arrives_s:
            now_s, shard = heapq.heappop(ends)
            free[shard] += 1
            serve()
        now_s = arrives_s
        is_keyed = rng.random() < keyed
        key = rng.choices(range(1000), cum_weights=weights)[0] if is_keyed else rng.randrange(2**32)
        shard = random.Random(key).randrange(shards)
        counts[shard] += 1
        waiting[shard].append(now_s)
        serve()
    return _outcome(starts, max(counts) / sum(counts))


def _outcome(starts: list[tuple[float, float]], largest_share: float) -> Outcome:
    waits = sorted(start_s - arrived_s for arrived_s, start_s in starts)
    overtaken_s, latest_s = 0.0, 0.0
    for arrived_s, _ in starts:  # in order of start
        overtaken_s = max(overtaken_s, latest_s - arrived_s)
        latest_s = max(latest_s, arrived_s)
    return Outcome(waits[len(waits) // 2], waits[len(waits) * 99 // 100], overtaken_s, largest_share)


def main() -> None:
    print("| shards | jobs with a key | slots | largest shard | p50 wait, s | p99 wait, s | overtaken by, s |")
    print("|---|---|---|---|---|---|---|")
    for shards in (1, 2, 4, 8):
        for keyed in (0.0, 0.5):
            for moves in (False, True) if shards > 1 else (False,):
                outcome = simulate(shards=shards, keyed=keyed, moves=moves)
                print(
                    f"| {shards} | {keyed:.0%} | {'moved' if moves else 'kept'} | {outcome.largest_share:.0%} | "
                    f"{outcome.p50_s:.2f} | {outcome.p99_s:.2f} | {outcome.overtaken_s:.2f} |"
                )


if __name__ == "__main__":
    main()
