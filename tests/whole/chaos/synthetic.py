"""Synthetic histories for tests of the checker."""

from .checker import check
from .history import History
from .ledger import Event
from .remains import Remains

#: Process ids: a worker, its pool process, and another worker.
WORKER, CHILD, OTHER = 100, 101, 200


class SyntheticHistory:
    """Synthetic events, and the checker's verdict."""

    def __init__(self):
        self.events = []
        self.at = 0.0

    def note(self, kind, subject, pid=1, **facts):
        self.events.append(Event(kind, self.at, pid, subject, {name: str(value) for name, value in facts.items()}))

    def publish(self, job, at=0.0, accepted=True, **facts):
        self.at = at
        self.note("intended", job, **{"task": f"task-{job}", "name": "late", **facts})
        if accepted:
            self.note("accepted", job)

    def run(self, job, start, end=None, worker=WORKER, pid=CHILD, outcome="done", keys="", **facts):
        run = f"{pid}.{len(self.events)}"
        self.at = start
        self.note("start", job, pid, run=run, worker=worker, keys=keys, **facts)
        if end is not None:
            self.at = end
            self.note("end", job, pid, run=run, outcome=outcome)

    def call(self, token, at=0.0, follows="", name="merged_fold", **facts):
        """Publish a merging call; its token begins with the merge key."""
        self.at = at
        self.note("follows", token, what=follows)
        self.note("call", token, **{"task": f"task-{token}", "name": name, "type": "pdf", **facts})
        self.note("call_accepted", token)

    def run_calls(self, calls, start, end=None, worker=WORKER, pid=CHILD, outcome="done", given=None, message_of=None):
        """Run merged calls with the message of the first call or of *message_of*; return the run."""
        run = f"{pid}.{len(self.events)}"
        self.at = start
        tokens = {"calls": ",".join(calls), "given": ",".join(calls if given is None else given)}
        tokens["task"] = f"task-{message_of or calls[0]}"
        self.note("merged", "batch", pid, run=run, worker=worker, **tokens)
        if end is not None:
            self.at = end
            self.note("end", "-", pid, run=run, outcome=outcome)
        return run

    def recur(self, calls, start, end=None, since="end", worker=WORKER, pid=CHILD):
        """Run recurring calls as one run."""
        run = f"{pid}.{len(self.events)}"
        self.at = start
        self.note("recurs", "batch", pid, run=run, worker=worker, since=since, calls=",".join(calls))
        if end is not None:
            self.at = end
            self.note("end", "-", pid, run=run, outcome="done")

    def step(self, token, at, *, has=True):
        """Publish and run the follow-up of a call."""
        self.publish(f"step-{token}-{at}", at=at, name="step", token=token)
        self.run(f"step-{token}-{at}", at + 0.1, at + 0.2)
        self.note("stepped", token, has=has)

    def happen(self, kind, subject, at, **facts):
        self.at = at
        self.note(kind, subject, **facts)

    def checked(self, **remains):
        history = History()
        history.read(sorted(self.events, key=lambda event: event.at))
        return check(history, Remains(**{"results": self.results(), **remains}))

    def results(self):
        """Return the expected results: SUCCESS for an end, FAILURE for a lost job."""
        tasks = {event.subject: event.facts["task"] for event in self.events if event.kind == "intended"}
        done = {event.subject for event in self.events if event.facts.get("outcome") == "done"}
        return {task: "SUCCESS" if job in done else "FAILURE" for job, task in tasks.items()}
