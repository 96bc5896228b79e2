"""Run the curl commands on pages of the docs."""

import os
import shlex
import subprocess


def run(block, url, **names):
    """Run the commands of a block, each with its status after a #; return the last reply."""
    for line in block.splitlines():
        command, _, status = line.removeprefix("$ ").rpartition("#")
        words = [os.path.expandvars(word) for word in shlex.split(_filled(command, names))]
        words = [word.replace("localhost:5556", url) for word in words]
        done = subprocess.run([*words, "-s", "-w", "\n%{http_code}"], capture_output=True, text=True, check=True)
        body, _, code = done.stdout.rpartition("\n")
        assert code == status.strip(), f"{line}\n{body}"
    return body


def _filled(command, names):
    for name, value in names.items():
        command = command.replace(f"${name}", value)
    return command
