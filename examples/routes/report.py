"""Tells what came out: two tables, and sentences that follow from the numbers."""

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

#: The sides in the head of a table; show() says which is which.
SHORT = {"affinity": "ours", "stock": "stock", "lock": "stock\n+ lock"}

#: Idle seconds below this are not worth a sentence.
WORTH_TELLING_S = 0.5

#: The example's own slots stretch a plan by slots / cores at most. What is so many times that comes from others.
BUSY = 1.25


def show(console: Console, runs: list[Run], merged: Run, failures: list[str]) -> None:
    names = f"ours: {SIDES['affinity']}; stock: {SIDES['stock']}; + lock: {SIDES['lock']}"
    console.print(f"\n{names}\n", soft_wrap=True)
    console.print(sides_table(runs))
    console.print(cities_table(runs[0]))
    console.print()
    _say(console, sentences(runs))
    console.print()
    console.print(merging.table(runs[0], merged))
    console.print()
    _say(console, merging.sentences(runs[0], merged))
    for failure in failures:
        console.print(failure, style="red", markup=False, soft_wrap=True)


def _say(console: Console, sentences: list[str]) -> None:
    for sentence in sentences:
        console.print(f"* {sentence}", markup=False, soft_wrap=True)


def sides_table(runs: list[Run]) -> Table:
    table = Table(title="The same changes, the same four slots", title_justify="left", title_style="bold")
    table.add_column("")
    for run in runs:
        table.add_column(SHORT[run.side], justify="right")
    for title, cities in (("users under the flood", set(flooded())), ("users in the city at rest", {AT_REST})):
        for name, percent in (("median", 50), ("longest", 100)):
            table.add_row(f"{title} wait, {name}, s", *(_waits(run, cities, percent) for run in runs))
    table.add_section()
    table.add_row("runs that began during another of their city", *(str(len(run.overlapping())) for run in runs))
    table.add_row("changes that no plan knows in the end", *(str(len(run.missing())) for run in runs))
    table.add_row("slots that only waited for a lock, s", *(f"{run.held_idle_s():.1f}" for run in runs))
    table.add_row("all done after, s", *(f"{run.took_s:.1f}" for run in runs))
    return table


def _waits(run: Run, cities: set[str], percent: int) -> str:
    waits = run.user_waits(cities)
    return seconds(percentile(waits, percent)) if waits else "-"


def cities_table(run: Run) -> Table:
    """Return the plans in the end, and how long the tours through the same stops are without trying."""
    title = "The tours in the end (ours); before: nearest neighbour alone"
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
    """Return what a person should notice, in plain words; each number is what was measured, better or worse."""
    said = [
        _under_the_flood(runs),
        _at_rest(runs),
        _overlaps(runs),
        _lost(runs),
        _locks(runs),
        _whole(runs),
        _with_care(runs),
    ]
    return [sentence for sentence in said if sentence]


def _under_the_flood(runs: list[Run]) -> str:
    users = [job for job in runs[0].select(mode="on_demand") if job.type in flooded()]
    before = max((runs[0].before(job) for job in users), default=0)  # type: ignore[arg-type]
    why = f"At most {before} of the changes that waited for the city went first."
    return _waits_of(runs, "a city under the flood", set(flooded()), why)


def _at_rest(runs: list[Run]) -> str:
    return _waits_of(runs, f"{AT_REST}, which no flood concerns,", {AT_REST}, "A reserve keeps a slot free.")


def _waits_of(runs: list[Run], where: str, cities: set[str], why: str) -> str:
    waits = [run.user_waits(cities) for run in runs]
    if not all(waits):
        return ""
    ours, *others = (f"{seconds(percentile(each, 50))} s" for each in waits)
    begin = f"A user who changes a stop in {where} waits {ours} (median) until the planning begins."
    return f"{begin} {why} {_on(runs, others)}"


def _on(runs: list[Run], figures: Iterable[object]) -> str:
    on = {"stock": "On stock Celery", "lock": "with a lock and a queue for users"}
    return ", ".join(f"{on[run.side]}: {figure}" for run, figure in zip(runs[1:], figures, strict=True)) + "."


def _overlaps(runs: list[Run]) -> str:
    ours, *others = (len(run.overlapping()) for run in runs)
    return f"Runs that began during another run of their city: {ours}. {_on(runs, others)}"


def _lost(runs: list[Run]) -> str:
    ours, *others = (len(run.missing()) for run in runs)
    return (
        f"Changes that no plan knows in the end: {ours}. {_on(runs, others)} A run reads the book of its city, plans, "
        "and writes the book; of two runs at once, one loses its change."
    )


def _locks(runs: list[Run]) -> str:
    idle = {run.side: run.held_idle_s() for run in runs}
    if idle.get("lock", 0.0) < WORTH_TELLING_S:
        return ""
    return (
        f"With the lock, runs that only waited for it held slots for {idle['lock']:.1f} s, summed. A run that waits "
        "for its key holds none."
    )


def _whole(runs: list[Run]) -> str:
    ours, *others = (f"{run.took_s:.1f} s" for run in runs)
    return f"All was planned after {ours}. {_on(runs, others)}"


def _with_care(runs: list[Run]) -> str:
    """Warn of an unequal comparison: a computer that others use is not as busy on each side."""
    most = BUSY * max(1.0, SLOTS * len(WORKERS) / (os.cpu_count() or 1))
    ours, *others = (f"{run.stretched():.1f}" for run in runs)
    if all(run.stretched() <= most for run in runs):
        return ""
    return (
        f"With care: planning took {ours} times its CPU time. {_on(runs, others)} This computer had other work, maybe "
        "more on one side; another run may be fairer."
    )
