"""Child processes that end at the latest with the process that started them, in whatever way the latter dies.

A child runs in a session of its own: Ctrl-C in the terminal is for the program there, which may still need the child
while it drains.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from ..log_limit import limited_logger

logger = limited_logger(__name__)

#: Longest wait, s, for a killed process, which ends at once unless the kernel is at work for it.
_ENDS_WITHIN_S = 10.0

# The launcher starts the program and stays as the program's child, to end the program should our own process die: then
# the pipe on standard input is at its end. A byte in the pipe says that all is in order. Linux could signal the program
# itself (PR_SET_PDEATHSIG), but does so when the *thread* that started the program ends, and macOS has no such thing.
# The look at the parent before the kill spares a process that got the pid of a program long dead.
_IN_ORDER = b"."
_LAUNCHER = """
import os, shutil, signal, sys
temporary, command = sys.argv[1], sys.argv[2:]
program = os.getpid()
if os.fork():
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execv(command[0], command)
if not os.read(0, 1):
    if os.getppid() == program:
        os.kill(program, signal.SIGKILL)
    if temporary:
        shutil.rmtree(temporary, ignore_errors=True)
os._exit(0)
"""


def start(
    command: Sequence[str], *, log: IO[bytes], env: Mapping[str, str] | None = None, temporary: str = ""
) -> "subprocess.Popen[bytes]":
    """Start *command*, a program's path and its arguments. Each process must be given to `reap` in the end.

    *temporary* is a directory to remove if our process dies.
    """
    return subprocess.Popen(  # noqa: S603  # the command is the caller's own
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, temporary, *command],
        stdin=subprocess.PIPE,
        bufsize=0,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,
    )


def reap(process: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of *process*, which was killed or has ended, and let its launcher end without a kill."""
    try:
        process.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        logger.warning("Not waiting for process %d, which was killed but does not end", process.pid)
    assert process.stdin is not None, "opened by start"
    with process.stdin as pipe, suppress(BrokenPipeError):  # broken: the launcher ended before
        pipe.write(_IN_ORDER)
