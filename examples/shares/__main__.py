"""Compare the slot time of two customers with weights 1 and 3. The calls of one take 10 ms, of the other 2 s.

python -m examples.shares [SECONDS]   # per side, 60 by default; there are three sides

A call occupies its slot from the claim to the end, so a call of 10 ms occupies it for some milliseconds more. The
column "in tasks" is the time that the tasks measure. The column "slots" is the number of claims per customer, sampled
every millisecond and summed over time. It is empty for the sides whose workers prefetch jobs without a free slot.
"""

import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import redis
from rich.console import Console
from rich.table import Table

from celery_affinity.schema.keys import Keys
from examples.comparing.processes import Processes
from examples.comparing.program import BOOT_S, DemoError, delete_keys, run, server
from examples.shares.app import AGE, CUSTOMERS, PUBLISHED, RAN, SHARE, SIDES, STOCK

SLOTS = 8

#: Work of each customer at the beginning, as a multiple of what all slots can do: neither customer runs out of work.
BACKLOG = 1.5

TITLES = {STOCK: "stock Celery", AGE: 'affinity_tenant_turns = "age"', SHARE: 'affinity_tenant_turns = "share"'}

console = Console()


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    table = Table(title=f"Seconds of {SLOTS} slots within {seconds:g} s, slow : quick", title_justify="left")
    for header in ("side", "in tasks", "ratio", "slots", "ratio"):
        table.add_column(header, justify="left" if header == "side" else "right")
    with server() as url:
        for side in SIDES:
            in_tasks, slots = measure(url, side, seconds)
            table.add_row(
                TITLES[side], *totals_and_ratio(in_tasks), *(totals_and_ratio(slots) if side == SHARE else ("", ""))
            )
    console.print(table)
    weights = [weight for weight, _ in CUSTOMERS.values()]
    console.print(f"The weights are {weights[0]} : {weights[1]}, so a fair share is {weights[1] / weights[0]:.2f}.")
    return 0


def totals_and_ratio(used: dict[str, float]) -> tuple[str, str]:
    ratio = used["slow"] / used["quick"] if used["quick"] else float("inf")
    return f"{used['slow']:,.1f} : {used['quick']:,.1f}", f"{ratio:.2f}"


def measure(url: str, side: str, seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    """Return each customer's seconds in tasks, and each customer's seconds of slots. *side*: the side to run.

    The measurement starts when the first call has run.
    """
    client = redis.Redis.from_url(url)
    keyprefix = f"celery-affinity-demo:{side}:{time.time_ns()}:"
    env = {"SHARES_URL": url, "SHARES_SIDE": side, "SHARES_KEYPREFIX": keyprefix}
    try:
        ran, slots = _run(client, keyprefix, env, seconds)
    finally:
        delete_keys(url, keyprefix)
    in_tasks = dict.fromkeys(CUSTOMERS, 0.0)
    for line in ran:
        customer, took = line.decode().split(" ")
        in_tasks[customer] += float(took)
    return in_tasks, slots


def _run(
    client: redis.Redis, keyprefix: str, env: dict[str, str], seconds: float
) -> tuple[list[bytes], dict[str, float]]:
    """Return the entries of the calls that ran within *seconds*, and each customer's seconds of slots."""
    with TemporaryDirectory() as folder, Processes(Path(folder), env) as processes:
        processes.python("publisher", "examples.shares.publish", str(seconds * SLOTS * BACKLOG))
        wait_until(processes, lambda: client.exists(keyprefix + PUBLISHED))
        processes.python("worker", *f"celery -A examples.shares.app worker -P threads -c {SLOTS} -l WARNING".split())
        wait_until(processes, lambda: client.llen(keyprefix + RAN))
        before = client.llen(keyprefix + RAN)
        slots = sample_slots(client, Keys(keyprefix), seconds)
        return client.lrange(keyprefix + RAN, before, -1), slots


def sample_slots(client: redis.Redis, keys: Keys, seconds: float) -> dict[str, float]:
    """Return the slot seconds of each customer during the next *seconds*, sampled every millisecond."""
    used, last = dict.fromkeys(CUSTOMERS, 0.0), time.monotonic()
    until = last + seconds
    while last < until:
        with client.pipeline(transaction=False) as pipe:
            for name in CUSTOMERS:
                pipe.zcard(keys.key("held", f"tenant%3A{name}"))
            held = pipe.execute()
        time.sleep(0.001)
        now = time.monotonic()
        for name, number in zip(CUSTOMERS, held, strict=True):
            used[name] += number * (now - last)
        last = now
    return used


def wait_until(processes: Processes, is_done) -> None:
    deadline = time.monotonic() + BOOT_S
    while not is_done():
        if (name := processes.failed()) or time.monotonic() > deadline:
            raise DemoError(
                f"The {name or 'worker'} did not start:\n{processes.log(name or 'worker').read_text()[-2000:]}"
            )
        time.sleep(0.02)


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    sys.exit(run(console, main))
