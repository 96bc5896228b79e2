"""The HTTP interface in the test's own process: an app, a fleet whose workers the test simulates, and a client."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys
from celery_affinity.web import asgi

from ..support import openapi
from ..support.apps import APP
from ..support.scripted_fleet import ScriptedFleet


class Client:
    """A client of an ASGI app, in one event loop.

    *host*, *client*: the server address and the client address of the requests. The loop has its own thread, because a
    browser may use the test's.
    """

    def __init__(self, app, *, token=None, host="localhost", client=("127.0.0.1", 1)):
        self.loop = asyncio.new_event_loop()
        self.thread = ThreadPoolExecutor(1)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=client)
        self.http = httpx.AsyncClient(transport=transport, base_url=f"http://{host}", headers=headers, timeout=40)

    def __call__(self, method, path, **options):
        reply = self.run(self.http.request(method, path, **options))
        openapi.check(reply)
        return reply

    def together(self, *calls):
        """Make several calls concurrently. Return the replies."""

        async def all_of_them():
            return await asyncio.gather(*(self.http.request(*each) for each in calls))

        return self.run(all_of_them())

    def run(self, coroutine):
        """Return the result of *coroutine*, run in the client's loop."""
        return self.thread.submit(self.loop.run_until_complete, coroutine).result()

    def get(self, path, **options):
        return self("GET", path, **options)

    def close(self):
        self.run(self.http.aclose())
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.run(asyncio.sleep(0))
        self.thread.shutdown()
        self.loop.close()


def error_of(reply):
    return reply.json()["error"]["message"]


@pytest.fixture
def fleet(valkey, redis_client):
    return ScriptedFleet(Scheduler(redis_client, Keys()))


@pytest.fixture
def app(redis_client, valkey, load_app):
    return load_app(APP)


@pytest.fixture
def serve(app, request):
    """Return a function that returns a client of the HTTP interface."""

    def serve(*, token=None, host="localhost", client=("127.0.0.1", 1), of=None, **options):
        made = Client(asgi(of or app, **options), token=token, host=host, client=client)
        request.addfinalizer(made.close)
        return made

    return serve


@pytest.fixture
def web(serve):
    return serve()
