"""A folder for running the commands of a docs page, with an app `shop` that does not need a broker."""

import os
import subprocess
import sys

from .pages import blocks
from .processes import ROOT


class ShopFolder:
    """Writes the app, and programs `celery` and `python` of this interpreter, into an empty *folder*."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "shop.py").write_text('from celery import Celery\napp = Celery("shop")\n')
        for name, words in {"celery": "-m celery", "python": ""}.items():
            program = folder / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            program.chmod(0o755)
        self._env = {
            **os.environ,
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }

    def run(self, page, block):
        """Run the single command of a block; return its output."""
        (line,) = blocks(page)[block].splitlines()
        return self.run_line(line.removeprefix("$ "))

    def run_line(self, line):
        """Run a command; return what it prints."""
        words = ["sh", "-c", line]
        return subprocess.run(words, cwd=self.folder, env=self._env, capture_output=True, text=True, check=True).stdout
