"""The client: publishes the calls of a plan at their times: `python -m examples.lab.publish PLAN`."""

import sys
import time
from pathlib import Path

from examples.lab import plan
from examples.lab.app import extract_excel, extract_pdf
from examples.pipeline.documents import type_of


def main(path: Path) -> None:
    started = time.monotonic()
    for call in plan.load(path):
        time.sleep(max(0.0, started + call.at - time.monotonic()))
        task = extract_pdf if type_of(Path(call.path)) == "pdf" else extract_excel
        task.apply_async((call.path, call.answer_s), on_demand=call.on_demand)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
