"""Search the documents that the pipeline has indexed: `python -m examples.pipeline.search tide gauge`."""

import argparse
import sys
from pathlib import Path

from examples.pipeline import OUTPUT, index


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.pipeline.search", description="Search the documents that the pipeline has indexed."
    )
    parser.add_argument("words", nargs="+", help="words that must all occur on the same page or sheet")
    parser.add_argument("--out", type=Path, default=OUTPUT, help="folder of the demo's results")
    options = parser.parse_args()
    path = options.out / "affinity" / index.NAME
    if not path.exists():
        print(f"There is no index at {path} yet: run python -m examples.pipeline first.", file=sys.stderr)
        return 2
    hits = index.search(path, " ".join(options.words))
    for hit in hits:
        print(f"{Path(hit.path).name}, {hit.part}: {hit.snippet}")
    if not hits:
        print(f"No page or sheet contains {' and '.join(options.words)}.")
    return 0 if hits else 1


if __name__ == "__main__":
    sys.exit(main())
