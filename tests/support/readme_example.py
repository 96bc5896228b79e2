"""The app, workers and calls of the README, run unchanged."""

from pathlib import Path

from .pages import blocks, commands
from .processes import Process


def run_the_readme(python: str, url: str, folder: Path, path: tuple[Path, ...] = ()) -> str:
    """Run the README's example with *python* on the server at *url*; return the output of `status`.

    The README's files are written into *folder*. *path*: more folders for ``PYTHONPATH``.
    """
    page = blocks("README.md")
    app = page["shop.py"].replace("redis://localhost", url)
    assert app.count(url) == 2
    (folder / "shop.py").write_text(app)
    (folder / "calls.py").write_text(page["calls.py"])
    env = {"PYTHONPATH": ":".join(map(str, (folder, *path)))}
    workers = []
    for command in commands(page["workers"]):
        words = command[: command.index("#")]
        name = words[words.index("-n") + 1].removesuffix("@%h")
        workers.append(Process(name, [python, "-m", *words, "-l", "INFO"], env, cwd=folder))
        workers[-1].wait_for("ready.", 60)
    Process("calls", [python, "calls.py"], env, cwd=folder).wait_for("c.pdf rendered", 60)
    status = Process("status", [python, "-m", "celery", "-A", "shop", "affinity", "status"], env, cwd=folder)
    assert status.wait(30) == 0, status.log()
    output = status.log()
    for worker in workers:
        worker.term()
        assert worker.wait(30) == 0, worker.log()
    return output
