"""Plan the tours of agents in five cities while changes come, on celery_affinity and on stock Celery, and compare.

Then many more changes come, and calls merge.

    python -m examples.routes

REDIS_URL names the server; without it, one is started for the example.
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
    requests, many = work.make(seconds), work.make_many(seconds)
    _say_work(console, requests, many)
    with program.server() as url:
        runs = [sides.run(console, side, requests, seconds, out, url) for side in sides.COMPARED]
        merged = sides.run(console, MERGED, many, seconds, out, url)
    failures = [each for run in runs for each in merging.failures(run, len(requests))]
    failures += merging.failures(merged, len(many))
    page = drawing.write(out / "routes.html", runs, merged, requests, failures)
    report.show(console, runs, merged, failures)
    console.print(f"\nThe tours, and the runs of each city: [bold]{page.resolve().as_uri()}[/bold]", soft_wrap=True)
    return 1 if failures else 0


def _say_work(console: Console, requests: list[work.Request], many: list[work.Request]) -> None:
    users = [request for request in requests if request.mode == "on_demand"]
    stops = sum(len(city.stops) for city in all_cities().values())
    agents = sum(city.agents for city in all_cities().values())
    console.print(
        f"{agents} agents visit {stops} stops in {', '.join(all_cities())}.\n"
        f"{len(requests) - len(users)} changes of stops come at once, in all cities but {work.AT_REST}; each plans its "
        f"city again. Meanwhile {len(users)} users\nchange a stop, and wait for the new tours. All sides get the same "
        "changes, and the same two workers of two slots.\n"
        f"In the end {len(many):,} changes come, and those of a city that wait together are planned by one run.\n",
        markup=False,
        soft_wrap=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.routes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUTPUT, help="where results go (default: demo-output/routes)")
    parser.add_argument(
        "--seconds", type=float, default=7.0, help="how long the work of one side should take, about (default: 7)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
