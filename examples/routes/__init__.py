"""Agents in several cities: each change of a stop plans the tours of its city again, or those that wait together do.

    python -m examples.routes            run it, on celery_affinity and on stock Celery
    python -m examples.routes.rules      the rules of what may start, one by one

Read `tasks.py` and `publish.py` first: they are all that an application would hold, beside `planner.py`.
"""

from pathlib import Path

#: Where the example writes, unless it is told otherwise: one folder for each side, and the page.
OUTPUT = Path(__file__).parent.parent.parent / "demo-output" / "routes"
