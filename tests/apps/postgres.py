"""A PostgreSQL server of Debian's package ``postgresql``, in a separate folder and on a free port."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

from celery_affinity.embedded.server import free_port

from ..support.processes import Process, wait_until

HOST = "127.0.0.1"


class Postgres:
    def __init__(self, folder):
        self._programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        self.port = free_port()
        data = folder / "data"
        data.mkdir(parents=True)
        if os.getuid() == 0:  # the server refuses to run as root
            for each in (folder, data):
                shutil.chown(each, "postgres")
        self._run("initdb", "--pgdata", data, "--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8")
        options = ["-D", data, "-h", HOST, "-p", self.port, "-k", "", "-c", "fsync=off", "-c", "max_connections=200"]
        self._process = Process("postgres", self._command("postgres", *options), {})
        wait_until(self._listens, 60, "PostgreSQL listens")

    def create(self, database):
        """Create a database; return its URL."""
        self._run("createdb", "-h", HOST, "-p", self.port, "-U", "postgres", database)
        return f"postgresql+psycopg2://postgres@{HOST}:{self.port}/{database}"

    def stop(self):
        """Shut down the server and its connections."""
        self._process.signal(signal.SIGINT)
        self._process.wait(60)
        self._process.end()

    def _listens(self):
        command = self._command("pg_isready", "-q", "-h", HOST, "-p", self.port)
        return subprocess.run(command, check=False).returncode == 0

    def _command(self, program, *options):
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"] if os.getuid() == 0 else []
        return [*as_user, str(self._programs / program), *map(str, options)]

    def _run(self, program, *options):
        done = subprocess.run(self._command(program, *options), cwd="/", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
