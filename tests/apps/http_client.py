"""A JSON client of a program's HTTP interface."""

import json
import urllib.error
import urllib.request

from tests.support.processes import wait_until


class HttpClient:
    def __init__(self, url):
        self.url = url
        self.headers = {"Content-Type": "application/json"}

    def ask(self, path, body=None):
        """Return the reply to a GET, or to a POST with *body*."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=self.headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.loads(reply.read())
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()[:2000]}") from error

    def ask_until_there(self, path, body=None):
        """Repeat a request until it succeeds: a starting program refuses connections or does not serve the path."""

        def reply():
            try:
                return self.ask(path, body)
            except (AssertionError, ConnectionError, urllib.error.URLError):
                return None

        return wait_until(reply, 180, f"{self.url}{path} replies")
