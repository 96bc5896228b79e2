"""An app whose second pool process kills the worker while it forks its pool, before either process is set up."""

import os
import signal
import time
from itertools import count

from . import new_app

app = new_app("orphans")

_forks = count(1)
_fork = 0


def _before():
    global _fork
    _fork = next(_forks)


def _in_child():
    if _fork == 1:
        time.sleep(0.5)
    elif _fork == 2:
        os.kill(os.getppid(), signal.SIGKILL)


os.register_at_fork(before=_before, after_in_child=_in_child)
