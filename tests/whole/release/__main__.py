"""``python -m tests.whole.release [--ref v1.0.0]``: build and check a release, without uploading it.

The wheel and the source package are built from the committed files of the ref. twine checks them, their files are
compared with the ref, and the README's example runs from the installed wheel, with only its required packages, on each
supported Python of this machine. If the release is not ready, the exit code is 1 and the reasons are printed; otherwise
the wheel is kept in ``dist`` for ``make upgrade-check``.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path

from celery_affinity.embedded import EmbeddedServer

from ...support.interpreters import interpreter
from ...support.processes import running_processes
from ...support.readme_example import run_the_readme
from . import building, contents

_WHERE = "import celery_affinity, sys; print(celery_affinity.__file__); print(sys.version.split()[0])"


def main() -> int:
    options = _options()
    os.environ.pop("PYTHONPATH", None)  # it may contain the working tree
    try:
        version = building.version_at(options.ref)
        packages = building.build(options.ref)
        building.twine_check(packages)
        source = building.OUTPUT / "source"
        wrong = list(_wrong(packages, source, version))
        for line in wrong:
            print(f"  WRONG {line}")
        (wheel,) = [each for each in packages if each.suffix == ".whl"]
        if not wrong:
            untried = [python for python in _supported(source) if not _install_and_run(python, wheel)]
    except building.NotReadyError as exc:
        print(f"  WRONG {exc}")
        return 1
    if wrong:
        print(f"{version} ({options.ref}): not ready, in {building.OUTPUT / 'dist'}")
        return 1
    ready = f"ready, but not tried with Python {', '.join(untried)}" if untried else "ready"
    print(f"{version} ({options.ref}): {ready}, in {building.OUTPUT / 'dist'}; kept as {building.keep(wheel)}")
    return 0


def _wrong(packages: list[Path], source: Path, version: str) -> list[str]:
    wanted, known, found = contents.tracked(source), building.classifiers(), []
    for package in packages:
        files, is_wheel = contents.files(package), package.suffix == ".whl"
        (metadata,) = [name for name in files if name.endswith("METADATA" if is_wheel else "PKG-INFO")]
        wrong = [
            *contents.wrong_files(files, wanted, is_wheel=is_wheel),
            *contents.wrong_metadata(files[metadata].decode(), version, known),
        ]
        print(f"{package.name}: {len(files)} files, {package.stat().st_size:,} bytes", flush=True)
        found += [f"{package.name}: {each}" for each in wrong]
    return found


def _supported(source: Path) -> list[str]:
    """Return the versions of Python in the classifiers."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    numbers = [each.rpartition(" :: ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    assert numbers
    return numbers


def _install_and_run(version: str, wheel: Path) -> bool:
    """Return False if this Python is not installed; raise NotReadyError if the wheel does not work with it."""
    found = interpreter(version)
    if found is None:
        print(f"Python {version}: not on this machine, NOT TRIED", flush=True)
        return False
    folder = building.OUTPUT / f"python{version}"
    python = building.install(found, folder, wheel)
    with tempfile.TemporaryDirectory() as name:
        run = subprocess.run([python, "-c", _WHERE], cwd=name, capture_output=True, text=True, check=True)
        where, number = run.stdout.split()
        if not Path(where).is_relative_to(folder):
            raise building.NotReadyError(f"Python {version} imports {where}, not the wheel")
        subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "check"], check=True, capture_output=True)
        try:
            with EmbeddedServer() as server:
                printed = run_the_readme(str(python), server.url, Path(name))
        finally:
            for process in running_processes():
                with suppress(ProcessLookupError):
                    process.end()
    if "specialist" not in printed or "versatile" not in printed:
        raise building.NotReadyError(f"Python {version}: status of the README's example shows no workers:\n{printed}")
    print(f"Python {number}: installed, and the README's example ran", flush=True)
    return True


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.whole.release", description=__doc__)
    parser.add_argument("--ref", default="HEAD", help="tag, branch or commit to build (default: HEAD)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
