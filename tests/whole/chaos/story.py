"""Stories for the judge: events that never were, in short words."""

from .book import Book
from .judge import judge
from .ledger import Event
from .remains import Remains

#: Process ids: of a worker, of a pool process of that worker, and of another worker.
WORKER, CHILD, OTHER = 100, 101, 200


class Story:
    """Events that never were, in short words, and the judge's verdict."""

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

    def run(self, job, start, end=None, worker=WORKER, pid=CHILD, outcome="done", key="", **facts):
        run = f"{pid}.{len(self.events)}"
        self.at = start
        self.note("start", job, pid, run=run, worker=worker, key=key, **facts)
        if end is not None:
            self.at = end
            self.note("end", job, pid, run=run, outcome=outcome)

    def happen(self, kind, subject, at, **facts):
        self.at = at
        self.note(kind, subject, **facts)

    def judged(self, **remains):
        book = Book()
        book.read(sorted(self.events, key=lambda event: event.at))
        return judge(book, Remains(**{"results": self.results(), **remains}))

    def results(self):
        """Return the results that tasks have if nothing went wrong: SUCCESS for an end, FAILURE for a lost job."""
        tasks = {event.subject: event.facts["task"] for event in self.events if event.kind == "intended"}
        done = {event.subject for event in self.events if event.facts.get("outcome") == "done"}
        return {task: "SUCCESS" if job in done else "FAILURE" for job, task in tasks.items()}
