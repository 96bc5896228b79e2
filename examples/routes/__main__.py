"""Plan tours in five cities while stops change, on celery_affinity and on stock Celery, and compare the results.

Then celery_affinity gets many more changes, and calls merge.

    python -m examples.routes

The example starts its own server unless REDIS_URL is set.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from examples.comparing import program
from examples.routes import OUTPUT, drawing, merging, report, sides, work
from examples.routes.cities import all_cities
from examples.routes.measure import MERGED


def main() -> int:
    options = _options()
    console = Console(highlight=False)
    return program.run(console, lambda: _compare(console, options.out, options.seconds))


def _compare(console: Console, out: Path, seconds: float) -> int:
    requests, many_requests = work.make(seconds), work.make_many(seconds)
    _print_work(console, requests, many_requests)
    with program.server() as url:
        runs = [sides.run(console, side, requests, seconds, out, url) for side in sides.COMPARED]
        merged = sides.run(console, MERGED, many_requests, seconds, out, url)
    failures = [failure for run in runs for failure in merging.failures(run, len(requests))]
    failures += merging.failures(merged, len(many_requests))
    page = drawing.write(out / "routes.html", runs, merged, requests, failures)
    report.show(console, runs, merged, failures)
    console.print(f"\nPage with all tours and runs: [bold]{page.resolve().as_uri()}[/bold]", soft_wrap=True)
    return 1 if failures else 0


def _print_work(console: Console, requests: list[work.Request], many_requests: list[work.Request]) -> None:
    users = [request for request in requests if request.mode == "on_demand"]
    stops = sum(len(city.stops) for city in all_cities().values())
    agents = sum(city.agents for city in all_cities().values())
    console.print(
        f"{agents} agents visit {stops} stops in {', '.join(all_cities())}.\n"
        f"A flood of {len(requests) - len(users)} changes of stops is published, in all cities except {work.AT_REST}. "
        f"Each change plans its city again. During the flood,\n{len(users)} users change a stop and wait for the new "
        "tours. All sides get the same changes, and the same two workers with two slots.\n"
        f"At the end, {len(many_requests):,} changes are published, and one run plans all waiting changes of a city.\n",
        markup=False,
        soft_wrap=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.routes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUTPUT, help="folder for the results (default: demo-output/routes)")
    parser.add_argument("--seconds", type=float, default=7.0, help="planned duration of a side's work (default: 7)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
