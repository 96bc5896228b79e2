"""Children that end at the latest with the process that started them, in whatever way that dies.

The child runs in a session of its own: Ctrl-C in the terminal is for the program there, which may still need it while
it drains.
"""

import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

logger = logging.getLogger(__name__)

#: A process that was killed ends at once, unless the kernel is at work for it, s.
_ENDS_WITHIN_S = 10.0

# Starts the program and stays as its child, to end it should our own process die: the pipe on standard input is then at
# its end. Linux could tell the program itself (PR_SET_PDEATHSIG), but goes by the *thread* that started it, and macOS
# has nothing of the kind. A byte in the pipe says that all is in order.
# Asking for the parent before the kill keeps it from a process that was given the number of a program long dead.
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
    """Start *command*, a program's path and its arguments. `reap` must be called for it in the end.

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
    """Wait for the end of *process*, killed by now, and have nothing more happen to it or to its directory."""
    try:
        process.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        logger.warning("Process %d does not end, though it was killed; that is not waited for", process.pid)
    assert process.stdin is not None, "opened by start"
    with process.stdin as pipe, suppress(BrokenPipeError):  # broken: the launcher's other half ended before
        pipe.write(_IN_ORDER)
