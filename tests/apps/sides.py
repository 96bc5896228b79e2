"""The two sides of a comparison, stock Celery's Redis transport and this package's, each with an empty server."""

import json
import os
import subprocess
from contextlib import contextmanager, suppress

import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.schema.keys import Keys

from ..support.ledger import whole_lines
from ..support.processes import ROOT, Process, wait_until
from .environments import python_of

TRANSPORTS = {"stock": "redis", "ours": "celery_affinity:Transport"}


class Side:
    """Starts the processes of a program on one transport. *environment*: the name of a requirements file."""

    def __init__(self, name, server, environment, folder, **env):
        self.name, self.url, self.folder = name, server.url, folder
        self.python = python_of(environment)
        self._started = []
        self.env = {
            "BROKER_URL": server.url,
            "TRANSPORT": TRANSPORTS[name],
            "FOLDER": str(folder),
            "PATH": os.pathsep.join([os.path.dirname(self.python), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "C_FORCE_ROOT": "1",
            **env,
        }

    def start(self, name, *command, **env):
        """Start a program of the environment, such as ``celery`` or ``airflow``."""
        program = os.path.join(os.path.dirname(self.python), command[0])
        process = Process(f"{name} on {self.name}", [program, *command[1:]], {**self.env, **env}, self.folder)
        self._started.append(process)
        return process

    def end(self):
        """End all started programs with SIGTERM first, so no process of a program escapes."""
        for process in self._started:
            if process.is_running:
                process.term()
        for process in self._started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.end()

    def start_worker(self, program, queue, *extra, **env):
        """Start a worker for a module of `tests.apps.programs`, named after its queue."""
        options = ["--loglevel", "INFO", "--hostname", f"{queue}@%h", "--queues", queue]
        options += ["--concurrency", "2", "--without-mingle", "--without-gossip"]
        worker = self.start(queue, "celery", "-A", f"tests.apps.programs.{program}", "worker", *options, *extra, **env)
        worker.wait_for(" ready.", 60)
        return worker

    def start_beat(self, program, *extra):
        options = ["--loglevel", "INFO", "--pidfile", "", "--max-interval", "1", *extra]
        return self.start("beat", "celery", "-A", f"tests.apps.programs.{program}", "beat", *options)

    def call(self, program, function="scenario", timeout=180, **env):
        """Call a function of a module in `tests.apps.programs` in a new process; return its result."""
        answer = self.folder / f"{program}.{function}.json"
        arguments = ("-m", "tests.apps.programs", program, function, str(answer))
        process = self.start(function, "python", *arguments, **env)
        code = process.wait(timeout)
        assert code == 0, process.log()[-6000:]
        return json.loads(answer.read_text())

    def run(self, *command, timeout=300, **env):
        """Run a program of the environment to its end; return its standard output."""
        program = os.path.join(os.path.dirname(self.python), command[0])
        options = {"cwd": self.folder, "env": {**os.environ, **self.env, **env}, "stdin": subprocess.DEVNULL}
        done = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=timeout, **options)
        assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def events(self):
        """Return the events that the processes of this side wrote into ``$FOLDER/events``."""
        return [json.loads(line) for line in whole_lines(self.folder / "events")]

    def wait_for_events(self, is_enough, message):
        wait_until(lambda: is_enough(self.events()), 60, f"{message}: {self.events()}")
        return self.events()


@contextmanager
def side(name, environment, tmp_path, **env):
    """Yield a side with an empty server and an empty folder; end its programs."""
    folder = tmp_path / name
    folder.mkdir()
    with EmbeddedServer() as server:
        made = Side(name, server, environment, folder, **env)
        yield made
        # A program that ignores the setting would compare stock with stock.
        with redis.Redis.from_url(server.url) as client:
            assert client.exists(Keys().key("schema")) == (name == "ours"), f"{name} is on the other transport"
        made.end()  # if a test fails, its processes end later: their logs are shown first


def on_both(scenario, environment, tmp_path, **env):
    """Return the results of *scenario* by the name of the side."""
    results = {}
    for name in TRANSPORTS:
        with side(name, environment, tmp_path, **env) as each:
            results[name] = scenario(each)
    return results
