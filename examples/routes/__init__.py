"""Tours of agents in five cities. Each change of a stop is a call that plans its city again; waiting calls can merge.

    python -m examples.routes            compare celery_affinity with stock Celery
    python -m examples.routes.rules      show the effect of each scheduling rule

Read `tasks.py` and `publish.py` first: with `planner.py`, they are the application.
"""

from pathlib import Path

#: Default folder for the results: one subfolder per side, and the page.
OUTPUT = Path(__file__).parent.parent.parent / "demo-output" / "routes"
