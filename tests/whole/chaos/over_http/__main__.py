"""``python -m tests.whole.chaos.over_http --seconds 120 --seed 7``: a storm, and its verdict."""

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from random import SystemRandom
from time import monotonic

from .campaign import Campaign

_SHOWN = 12


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.whole.chaos.over_http", description=__doc__)
    parser.add_argument("--seed", default=str(SystemRandom().randrange(10**6)), help="of the order of the faults")
    parser.add_argument("--seconds", type=float, default=120, help="how long a storm blows")
    parser.add_argument("--rate", type=float, default=25, help="jobs published a second, about")
    parser.add_argument("--output", type=Path, help="where the ledger and the logs go")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends all started processes
    output = options.output or Path(tempfile.mkdtemp(prefix="celery-affinity-over-http-"))
    print(f"SEED={options.seed}, in {output}", flush=True)
    began = monotonic()
    with Campaign(output / "campaign", options.seed).running() as campaign:
        verdict = campaign.storm(options.seconds, options.rate)
    print(f"{verdict.accepted} jobs, {verdict.runs} runs {dict(verdict.by)}, of them {verdict.again} again")
    print(f"kills: {dict(verdict.kills)}; {monotonic() - began:.0f} s")
    for violation in verdict.violations[:_SHOWN]:
        print(f"VIOLATION: {violation}", flush=True)
    return int(bool(verdict.violations))


if __name__ == "__main__":
    sys.exit(main())
