"""Compare the lab's two engines on random scenarios: ``python -m tests.lab.agreement 2000 [SEED [JOBS]]``."""

import random
import sys

import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.lab import fast_engine, scripts_engine

from ..support.random_scenarios import at_random


def main(count, seed=0, jobs=40):
    agreed = claims = 0
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        for nth in range(count):
            scenario = at_random(random.Random(f"{seed} {nth}"), jobs=jobs)
            exact, fast = scripts_engine.schedule_exact(scenario, client=client), fast_engine.schedule_fast(scenario)
            claims += len(exact.runs)
            if exact == fast:
                agreed += 1
            else:
                pairs = enumerate(zip(exact.runs, fast.runs, strict=False))
                first = next((each for each in pairs if each[1][0] != each[1][1]), "one is longer")
                print(f"seed {seed}, scenario {nth}: {first}")
    print(f"{agreed:,} of {count:,} scenarios agreed, {claims:,} claims")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
