"""Measure what waiting workers over HTTP cost one web process: ``python -m tests.http_workers.polling --workers 1000``.

Starts a server, a web process and the workers. The workers wait for *seconds* and then run *jobs* empty jobs.
Prints the CPU time and the memory of the web process, its threads and its connections to the server.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import redis

from celery_affinity.embedded import EmbeddedServer

from ..support.processes import ROOT, Process, running_processes, wait_until

APP = """
import os
from celery import Celery

app = Celery("shop", broker=os.environ["BROKER_URL"], backend=os.environ["BROKER_URL"])
app.conf.update(broker_transport="celery_affinity:Transport", task_ignore_result=False)


@app.task(affinity="page", acks_late=True)
def render(path): ...
"""
PUBLISH = "from shop import render; [render.delay('a') for _ in range({})]"
_WAIT_S = 20


class Worker:
    """A worker with one connection, which stays open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.ended = 0

    async def join(self, nth: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._secret = ""
        _, joined = await self._ask("POST", "/api/workers", {"name": f"one-{nth}", "types": ["page"]})
        self._id, self._secret = joined["id"], joined["secret"]

    async def work(self) -> None:
        while True:
            status, reply = await self._ask("GET", f"/api/workers/{self._id}/jobs?wait={_WAIT_S}&held=")
            assert status in (200, 204), (status, reply)
            for job in reply["jobs"] if status == 200 else ():
                claim = {"fence": job["fence"]}
                for step in ({"start": claim}, {"end": {**claim, "state": "done", "result": 1}}):
                    ((word, body),) = step.items()
                    status, reply = await self._ask("POST", f"/api/jobs/{job['id']}/{word}", body)
                    assert status == 200, (status, reply)
                self.ended += 1

    async def _ask(self, method: str, path: str, body: dict | None = None) -> tuple[int, dict]:
        text = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n"
        head += f"Content-Type: application/json\r\nWorker-Secret: {self._secret}\r\n\r\n"
        self._writer.write(head.encode() + text)
        head_of_reply = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", head_of_reply, re.IGNORECASE)
        reply = await self._reader.readexactly(int(length[1])) if length else b""
        return int(head_of_reply.split()[1]), json.loads(reply or b"{}")


async def measure(options: argparse.Namespace, web: psutil.Process, port: int, url: str, publish: list[str]) -> None:
    def cpu_s() -> float:
        return sum(web.cpu_times()[:2])

    def megabytes() -> float:
        return web.memory_info().rss / 1e6

    empty_mb = megabytes()
    workers = [Worker(port) for _ in range(options.workers)]
    for nth, each in enumerate(workers):
        await each.join(nth)
    tasks = [asyncio.create_task(each.work()) for each in workers]
    await asyncio.sleep(min(10, options.seconds))  # until all of them wait
    began_s = cpu_s()
    await asyncio.sleep(options.seconds)
    used = (cpu_s() - began_s) / options.seconds
    with redis.Redis.from_url(url) as client:
        connections = len(client.client_list())
    print(f"{options.workers} workers wait: {used:.3f} of a core, {megabytes():.0f} MB ({empty_mb:.0f} without them)")
    print(f"{web.num_threads()} threads, {connections} connections to the server of all processes", flush=True)
    began_s = cpu_s()
    publisher = await asyncio.create_subprocess_exec(*publish)
    while sum(each.ended for each in workers) < options.jobs:
        failed = [each.exception() for each in tasks if each.done()]
        assert not failed, failed[0]
        await asyncio.sleep(0.1)
    await publisher.wait()
    each_ms = (cpu_s() - began_s) / options.jobs * 1000
    print(f"{options.jobs} jobs: {each_ms:.1f} ms of CPU time of the web process each")
    for each in tasks:
        each.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.http_workers.polling", description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--jobs", type=int, default=500)
    options = parser.parse_args()
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "shop.py").write_text(APP)
        env = {"PYTHONPATH": os.pathsep.join([folder, str(ROOT)]), "BROKER_URL": server.url}
        os.environ.update(env)  # of the publisher
        try:
            command = [sys.executable, "-u", "-m", "celery", "-A", "shop", "affinity", "web", "--port", "0"]
            web = Process("web", command, env)
            address = wait_until(lambda: re.search(r"http://\S+:(\d+)", web.log()), 60, f"it serves: {web.log()}")
            publish = [sys.executable, "-c", PUBLISH.format(options.jobs)]
            asyncio.run(measure(options, psutil.Process(web.pid), int(address[1]), server.url, publish))
        finally:
            for process in running_processes():
                with suppress(ProcessLookupError):
                    process.end()


if __name__ == "__main__":
    main()
