"""Prints the results: tables, and sentences derived from the numbers."""

import os
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from examples.comparing.figures import percentile, seconds
from examples.routes import merging
from examples.routes.cities import all_cities
from examples.routes.measure import SLOTS, WORKERS, Run
from examples.routes.planner import by_nearest_neighbour
from examples.routes.sides import SIDES
from examples.routes.work import AT_REST, flooded

#: Short names of the sides for table headers. `show` prints the full names.
SHORT = {"affinity": "ours", "stock": "stock", "lock": "stock\n+ lock"}

#: Idle times below this number of seconds are not reported.
MIN_REPORTED_S = 0.5

#: The example's slots slow a plan down by a factor of at most slots / cores. If the measured factor is more than
#: BUSY_FACTOR times as large, other programs used the cores.
BUSY_FACTOR = 1.25


def show(console: Console, runs: list[Run], merged: Run, failures: list[str]) -> None:
    names = f"ours: {SIDES['affinity']}; stock: {SIDES['stock']}; + lock: {SIDES['lock']}"
    console.print(f"\n{names}\n", soft_wrap=True)
    console.print(sides_table(runs))
    console.print(cities_table(runs[0]))
    console.print()
    _print(console, sentences(runs))
    console.print()
    console.print(merging.table(runs[0], merged))
    console.print()
    _print(console, merging.sentences(runs[0], merged))
    for failure in failures:
        console.print(failure, style="red", markup=False, soft_wrap=True)


def _print(console: Console, sentences: list[str]) -> None:
    for sentence in sentences:
        console.print(f"* {sentence}", markup=False, soft_wrap=True)


def sides_table(runs: list[Run]) -> Table:
    table = Table(title="The same changes, the same four slots", title_justify="left", title_style="bold")
    table.add_column("")
    for run in runs:
        table.add_column(SHORT[run.side], justify="right")
    for title, cities in (("users in flooded cities", set(flooded())), (f"users in {AT_REST}", {AT_REST})):
        for name, percent in (("median", 50), ("longest", 100)):
            table.add_row(f"{title} wait, {name}, s", *(_waits(run, cities, percent) for run in runs))
    table.add_section()
    table.add_row("runs that overlap another run of their city", *(str(len(run.overlapping())) for run in runs))
    table.add_row("changes missing in the final plans", *(str(len(run.missing())) for run in runs))
    table.add_row("slots held only to wait for a lock, s", *(f"{run.held_idle_s():.1f}" for run in runs))
    table.add_row("all done after, s", *(f"{run.took_s:.1f}" for run in runs))
    return table


def _waits(run: Run, cities: set[str], percent: int) -> str:
    waits = run.user_waits(cities)
    return seconds(percentile(waits, percent)) if waits else "-"


def cities_table(run: Run) -> Table:
    """Return a table of the final plans, and of simple nearest-neighbour tours through the same stops."""
    title = "The final tours (ours); before: nearest neighbour only"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("city")
    for column in ("runs", "stops", "agents", "before,\nkm", "after,\nkm", "saved"):
        table.add_column(column, justify="right")
    for city in all_cities().values():
        book = run.book(city.name)
        visited = [stop for stop in city.stops if stop.name not in book["dropped"]]
        before_km = by_nearest_neighbour(city.base, visited, city.agents).km
        figures = f"{before_km:.1f}", f"{book['km']:.1f}", f"{100 * (1 - book['km'] / before_km):.0f} %"
        table.add_row(city.name, str(len(run.of_city(city.name))), str(len(visited)), str(city.agents), *figures)
    return table


def sentences(runs: list[Run]) -> list[str]:
    """Return the main results as sentences, also where stock Celery is better."""
    candidates = [
        _under_the_flood(runs),
        _at_rest(runs),
        _overlaps(runs),
        _lost(runs),
        _locks(runs),
        _whole(runs),
        _unequal_load(runs),
    ]
    return [sentence for sentence in candidates if sentence]


def _under_the_flood(runs: list[Run]) -> str:
    users = [job for job in runs[0].select(mode="on_demand") if job.type in flooded()]
    earlier = max((runs[0].overtaken_by(job) for job in users), default=0)  # type: ignore[arg-type]
    reason = f"At most {earlier} of the city's waiting changes started first."
    return _waits_of(runs, "a flooded city", set(flooded()), reason)


def _at_rest(runs: list[Run]) -> str:
    return _waits_of(runs, f"{AT_REST}, which has no flood,", {AT_REST}, "A reserve keeps a slot free.")


def _waits_of(runs: list[Run], place: str, cities: set[str], reason: str) -> str:
    waits = [run.user_waits(cities) for run in runs]
    if not all(waits):
        return ""
    ours, *others = (f"{seconds(percentile(side_waits, 50))} s" for side_waits in waits)
    wait = f"A user who changes a stop in {place} waits {ours} (median) until the planning begins."
    return f"{wait} {reason} {_on(runs, others)}"


def _on(runs: list[Run], figures: Iterable[object]) -> str:
    names = {"stock": "On stock Celery", "lock": "with a lock and a queue for users"}
    return ", ".join(f"{names[run.side]}: {figure}" for run, figure in zip(runs[1:], figures, strict=True)) + "."


def _overlaps(runs: list[Run]) -> str:
    ours, *others = (len(run.overlapping()) for run in runs)
    return f"Runs that overlap another run of their city: {ours}. {_on(runs, others)}"


def _lost(runs: list[Run]) -> str:
    ours, *others = (len(run.missing()) for run in runs)
    return (
        f"Changes missing in the final plans: {ours}. {_on(runs, others)} A run reads the plan file of its city, "
        "plans, and writes the file. If two runs do this at the same time, the change of one is lost."
    )


def _locks(runs: list[Run]) -> str:
    idle = {run.side: run.held_idle_s() for run in runs}
    if idle.get("lock", 0.0) < MIN_REPORTED_S:
        return ""
    return (
        f"With the lock, runs held slots for a total of {idle['lock']:.1f} s only to wait for it. A job that waits for "
        "its key holds no slot."
    )


def _whole(runs: list[Run]) -> str:
    ours, *others = (f"{run.took_s:.1f} s" for run in runs)
    return f"All changes were planned after {ours}. {_on(runs, others)}"


def _unequal_load(runs: list[Run]) -> str:
    """Warn if other programs used the computer: then the sides may not have had the same CPU time."""
    max_slowdown = BUSY_FACTOR * max(1.0, SLOTS * len(WORKERS) / (os.cpu_count() or 1))
    ours, *others = (f"{run.slowdown():.1f}" for run in runs)
    if all(run.slowdown() <= max_slowdown for run in runs):
        return ""
    return (
        f"Unequal load: planning took {ours} times its CPU time. {_on(runs, others)} Other programs used this "
        "computer, perhaps more on one side. Run the example again."
    )
