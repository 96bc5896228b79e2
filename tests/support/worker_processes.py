"""The guard and the pool processes of a worker."""

import psutil

from .processes import wait_until


def guard_of(worker):
    """Return the guard's process."""

    def guards():
        children = psutil.Process(worker.pid).children()
        return [each for each in children if "guard of" in " ".join(_command(each))]

    (guard,) = wait_until(guards, 5, f"a guard. The log:\n{worker.log()}")
    return guard


def pool_of(worker):
    """Return the pool processes of *worker*."""
    guard = guard_of(worker)
    return [each for each in psutil.Process(worker.pid).children(recursive=True) if each != guard and runs(each)]


def _command(process):
    return process.cmdline() if runs(process) else []


def runs(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def none_runs(processes):
    return lambda: not any(map(runs, processes))
