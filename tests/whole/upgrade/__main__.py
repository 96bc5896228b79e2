"""``python -m tests.whole.upgrade [--from REF|WHEEL]``: upgrade from a release to the tree and back, on one server.

The release is the wheel of a git ref, or a kept wheel. The tree takes over running, waiting, merged, blocked and
scheduled jobs; then the release takes over again, like in a rollback. Both publish while both use the data. If the
release has another schema, the tree must reject its data and not change any of them.
"""

import argparse
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.schema.keys import SCHEMA

from ...support.processes import ROOT, running_processes
from ..release import building
from .releases import TREE, release_of
from .takeover import refuse, schema_written_by, take_over


def main() -> None:
    options = _options()
    release = release_of(options.release)
    try:
        with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
            schema = schema_written_by(release, server.url, Path(folder))
            if schema != str(SCHEMA):
                refuse(TREE, server.url, Path(folder))
                print(f"the tree has schema {SCHEMA}: it rejects the data of {options.release}, which has {schema}")
                return
            redis.Redis.from_url(server.url).flushall()
            take_over(release, TREE, server.url, Path(folder))
            take_over(TREE, release, server.url, Path(folder))
    finally:
        for process in running_processes():
            with suppress(ProcessLookupError):
                process.end()
    print(f"{options.release} and the tree work on one server, in both directions")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.whole.upgrade", description=__doc__)
    by_default = "by default the last wheel kept by make release-check, or the newest tag v*"
    parser.add_argument("--from", dest="release", help=f"a git ref, or a wheel; {by_default}")
    options = parser.parse_args()
    if options.release is None and (wheel := building.last_kept()) is not None:
        options.release = str(wheel)
    if options.release is None:
        words = ["git", "describe", "--tags", "--abbrev=0", "--match", "v*"]
        found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        options.release = found.stdout.strip() or None
    if options.release is None:
        parser.error("no release or kept wheel: run make release-check, or pass a git ref or a wheel to --from")
    return options


if __name__ == "__main__":
    main()
