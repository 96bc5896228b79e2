"""The time of slots that two customers have, with weights 1 and 3, one of whom has calls of 10 ms and one of 2 s.

python -m examples.shares [SECONDS]   # 60 by default, for each of three sides

A slot is taken from the claim of a call to its end, so a call of 10 ms takes one for some milliseconds more. The column
"in tasks" has what the tasks themselves measured; "slots" the integral of the claims, looked at each millisecond: only
where no job is held ahead of its slot.
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
from examples.comparing.program import BOOT_S, DemoError, run, server
from examples.shares.app import AGE, CUSTOMERS, RAN, SHARE, SIDES, STOCK

SLOTS = 8

#: Work of each customer that waits at the beginning, in parts of what all slots can do: neither ever has none.
BACKLOG = 1.5

WORDS = {STOCK: "stock Celery", AGE: 'affinity_tenant_turns = "age"', SHARE: 'affinity_tenant_turns = "share"'}

console = Console()


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    table = Table(title=f"Seconds of {SLOTS} slots within {seconds:g} s, slow : quick", title_justify="left")
    for header in ("side", "in tasks", "ratio", "slots", "ratio"):
        table.add_column(header, justify="left" if header == "side" else "right")
    with server() as url:
        for side in SIDES:
            in_tasks, slots = measure(url, side, seconds)
            table.add_row(WORDS[side], *in_words(in_tasks), *(in_words(slots) if side == SHARE else ("", "")))
    console.print(table)
    weights = [weight for weight, _ in CUSTOMERS.values()]
    console.print(f"The weights are {weights[0]} : {weights[1]}, so a fair share is {weights[1] / weights[0]:.2f}.")
    return 0


def in_words(used: dict[str, float]) -> tuple[str, str]:
    ratio = used["slow"] / used["quick"] if used["quick"] else float("inf")
    return f"{used['slow']:,.1f} : {used['quick']:,.1f}", f"{ratio:.2f}"


def measure(url: str, side: str, seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds that each customer has on a *side* in tasks, and of slots, once the first call has run."""
    client = redis.Redis.from_url(url)
    client.flushdb()
    env = {"SHARES_URL": url, "SHARES_SIDE": side}
    with TemporaryDirectory() as folder, Processes(Path(folder), env) as processes:
        processes.python("publisher", "examples.shares.publish", str(seconds * SLOTS * BACKLOG))
        wait(processes, lambda: client.get("examples:shares:published"))
        processes.python("worker", *f"celery -A examples.shares.app worker -P threads -c {SLOTS} -l WARNING".split())
        wait(processes, lambda: client.llen(RAN))
        before = client.llen(RAN)
        slots = integral(client, seconds)
        ran = client.lrange(RAN, before, -1)
    in_tasks = dict.fromkeys(CUSTOMERS, 0.0)
    for each in ran:
        customer, took = each.decode().split(" ")
        in_tasks[customer] += float(took)
    return in_tasks, slots


def integral(client: redis.Redis, seconds: float) -> dict[str, float]:
    """Return the integral of the slots that each customer has, over *seconds* from now on."""
    used, at = dict.fromkeys(CUSTOMERS, 0.0), time.monotonic()
    until = at + seconds
    while at < until:
        with client.pipeline(transaction=False) as pipe:
            for name in CUSTOMERS:
                pipe.zcard(Keys().key("held", f"tenant%3A{name}"))
            held = pipe.execute()
        time.sleep(0.001)
        now = time.monotonic()
        for name, number in zip(CUSTOMERS, held, strict=True):
            used[name] += number * (now - at)
        at = now
    return used


def wait(processes: Processes, done) -> None:
    until = time.monotonic() + BOOT_S
    while not done():
        if (name := processes.failed()) or time.monotonic() > until:
            raise DemoError(
                f"The {name or 'worker'} did not start:\n{processes.log(name or 'worker').read_text()[-2000:]}"
            )
        time.sleep(0.02)


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    sys.exit(run(console, main))
