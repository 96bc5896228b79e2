"""The metadata name the licence of everything that the package carries."""

import tomllib

from ..support.processes import ROOT


def test_the_licence_of_what_others_wrote_is_in_the_metadata():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {"LICENSE": "BSD 3-Clause License", **dict.fromkeys(_of_others(), "The MIT License")}
    assert set(project["license-files"]) == set(named)
    for path, words in named.items():
        assert words in (ROOT / path).read_text()
    assert project["license"] == "BSD-3-Clause AND MIT"


def _of_others():
    """Return the licence of each library in a folder `vendor`, of which each file has one."""
    vendors = [path for path in (ROOT / "celery_affinity").rglob("vendor") if path.is_dir()]
    files = [path for vendor in vendors for path in vendor.iterdir()]
    libraries = {path.name.partition(".")[0]: path.parent for path in files}
    assert libraries
    return [(folder / f"{name}.LICENSE").relative_to(ROOT).as_posix() for name, folder in libraries.items()]
