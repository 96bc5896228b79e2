"""Compare two ways to wait for results in an event loop: `aresult`, and `AsyncResult.get` in threads.

``python -m benchmarks.awaited`` starts 1,000 waits in one process, and another process stores a result every 2 ms, in
random order. Each way runs in a new process. ``to_thread`` uses asyncio's default threads (the number of cores plus 4),
so later waits start only when earlier ones have ended. ``1000 threads`` gives each wait a thread.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from celery import Celery, states

from celery_affinity import aresult
from celery_affinity.embedded import EmbeddedServer

WAYS = ("aresult", "to_thread", "1000 threads")
#: Seconds between two results, and until the first one.
INTERVAL_S, SETTLES_S = 0.002, 3.0
_TIMEOUT_S = 120


def new_app(url: str) -> Celery:
    return Celery("awaited", backend=url, set_as_current=False)


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def store(url: str, number: int) -> None:
    """Store each result with the time at which it was stored."""
    backend = new_app(url).backend
    ids = [f"task-{i}" for i in range(number)]
    random.Random(1).shuffle(ids)
    for id_ in ids:
        backend.store_result(id_, time.time(), states.SUCCESS)
        time.sleep(INTERVAL_S)


async def wait(url: str, way: str, number: int) -> dict[str, float]:
    app, before_mb = new_app(url), memory_mb()
    loop = asyncio.get_running_loop()
    if way == "1000 threads":
        loop.set_default_executor(ThreadPoolExecutor(number))

    async def latency_s(id_: str) -> float:
        result = app.AsyncResult(id_)
        if way == "aresult":
            stored_s = await aresult(result, timeout=_TIMEOUT_S)
        else:
            stored_s = await asyncio.to_thread(result.get, timeout=_TIMEOUT_S)
        return time.time() - stored_s

    waits = [asyncio.create_task(latency_s(f"task-{i}")) for i in range(number)]
    await asyncio.sleep(SETTLES_S)
    threads, grown_mb, cpu_s = threading.active_count(), memory_mb() - before_mb, time.process_time()
    command = [sys.executable, "-m", "benchmarks.awaited", "--store", url, "--waiters", str(number)]
    storing = await asyncio.create_subprocess_exec(*command)
    latencies = sorted(await asyncio.gather(*waits))
    cpu_s = time.process_time() - cpu_s
    await storing.wait()
    return {
        "threads": threads,
        "memory, MB": grown_mb,
        "CPU, s": cpu_s,
        "median, ms": latencies[number // 2] * 1e3,
        "99 %, ms": latencies[number * 99 // 100] * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiters", type=int, default=1000)
    parser.add_argument("--wait", nargs=2, metavar=("URL", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument("--store", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.store:
        store(options.store, options.waiters)
    elif options.wait:
        print(json.dumps(asyncio.run(wait(*options.wait, options.waiters))))
    else:
        for way in WAYS:
            with EmbeddedServer() as server:
                command = [sys.executable, "-m", "benchmarks.awaited", "--wait", server.url, way]
                command += ["--waiters", str(options.waiters)]
                figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(f"{way:14}", *(f"{name} {value:.1f}" for name, value in figures.items()), sep="  ")


if __name__ == "__main__":
    main()
