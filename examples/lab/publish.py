"""The client: publishes what a plan says, when it says so: `python -m examples.lab.publish PLAN`."""

import sys
import time
from pathlib import Path

from examples.lab import plan
from examples.lab.app import extract_excel, extract_pdf
from examples.pipeline.documents import type_of


def main(path: Path) -> None:
    started = time.monotonic()
    for each in plan.load(path):
        time.sleep(max(0.0, started + each.at - time.monotonic()))
        task = extract_pdf if type_of(Path(each.path)) == "pdf" else extract_excel
        task.apply_async((each.path, each.answer_s), on_demand=each.on_demand)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
