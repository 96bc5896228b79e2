"""How unequal the shards of one type would be, if a hash chose the shard: ``python -m benchmarks.shards``.

A model of one type on several shards, without a server: jobs arrive at random (Poisson), each takes a random time
(exponential), and a hash sends it to a shard. *kept*: each shard keeps its share of the slots. *moved*: idle slots move
to a shard where jobs wait, as those of a worker of several cohorts do. *keyed*: the part of jobs with a key, a few of
which are in most calls (Zipf); all jobs of a key are in one shard.
"""

import heapq
import random
from collections import deque
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Outcome:
    """Waits in s. *p50_s*, *p99_s*: of all jobs. *overtaken_s*: most by which a later job started before an earlier."""

    p50_s: float
    p99_s: float
    overtaken_s: float
    largest_share: float


def simulated(
    *,
    shards: int,
    slots: int = 64,
    load: float = 0.9,
    jobs: int = 20_000,
    keyed: float = 0.0,
    moves: bool,
    seed: int = 1,
) -> Outcome:
    """Return what becomes of *jobs* of 1 s on average, with *load* as the part of the slots that they need."""
    draw = random.Random(seed)  # a model, which is to be repeatable
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
        heapq.heappush(ends, (now_s + draw.expovariate(1), shard))

    def serve() -> None:
        for shard in range(shards):
            while waiting[shard]:
                of = max(range(shards), key=free.__getitem__)
                if moves and free[shard] <= 0 < free[of]:
                    free[of], free[shard] = free[of] - 1, free[shard] + 1
                if free[shard] <= 0:
                    break
                start(shard, waiting[shard].popleft())

    for _ in range(jobs):
        arrives_s = now_s + draw.expovariate(load * slots)
        while ends and ends[0][0] <= arrives_s:
            now_s, shard = heapq.heappop(ends)
            free[shard] += 1
            serve()
        now_s = arrives_s
        is_keyed = draw.random() < keyed
        key = draw.choices(range(1000), cum_weights=weights)[0] if is_keyed else draw.randrange(2**32)
        shard = random.Random(key).randrange(shards)
        counts[shard] += 1
        waiting[shard].append(now_s)
        serve()
    return _outcome(starts, max(counts) / sum(counts))


def _outcome(starts: list[tuple[float, float]], largest_share: float) -> Outcome:
    waits = sorted(start_s - arrived_s for arrived_s, start_s in starts)
    overtaken_s, latest_s = 0.0, 0.0
    for arrived_s, _ in starts:  # in the order of their starts
        overtaken_s = max(overtaken_s, latest_s - arrived_s)
        latest_s = max(latest_s, arrived_s)
    return Outcome(waits[len(waits) // 2], waits[len(waits) * 99 // 100], overtaken_s, largest_share)


def main() -> None:
    print("| shards | jobs with a key | slots | largest shard | p50 wait, s | p99 wait, s | overtaken by, s |")
    print("|---|---|---|---|---|---|---|")
    for shards in (1, 2, 4, 8):
        for keyed in (0.0, 0.5):
            for moves in (False, True) if shards > 1 else (False,):
                found = simulated(shards=shards, keyed=keyed, moves=moves)
                print(
                    f"| {shards} | {keyed:.0%} | {'moved' if moves else 'kept'} | {found.largest_share:.0%} | "
                    f"{found.p50_s:.2f} | {found.p99_s:.2f} | {found.overtaken_s:.2f} |"
                )


if __name__ == "__main__":
    main()
