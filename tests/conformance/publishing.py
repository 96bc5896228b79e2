"""Moves that publish jobs."""

from celery_affinity.schema.bounds import Bound
from celery_affinity.schema.job_record import is_batch

from . import draw
from .both import Both, in_order, job_of, message_of, often
from .side_by_side import Named
from .vocabulary import (
    BURST,
    SECOND_US,
    TYPES,
    delays_us,
    expiries_us,
    known_indexes,
    marks,
    other_tasks,
    priorities,
    short_delays_us,
    some_indexes,
    some_stamps,
    spoilt_fields,
    types,
    urgent,
)


class Publishing(Both):
    """Moves that publish jobs."""

    def known_calls(self):
        """Return the ids of all published jobs."""
        return [each for each in self.reference.jobs if not is_batch(each)]

    def again(self, jobs, index, task_id):
        """Return the first of *jobs*, and a known job with another task, to be published with them."""
        if index is None:
            return []
        known = [(job_id, *jobs[-1][1:]) for job_id in self.known_calls()[-1 - index :][:1]]
        return [(*job, None, (), task_id) for job in (*jobs[:1], *known)]

    @often(
        12,
        letter=draw.sampled_from("abc"),
        mark=marks,
        type_=types,
        on_demand=draw.booleans(),
        priority=priorities,
        delay_us=delays_us,
        expires_us=expiries_us,
        stamps=some_stamps,
    )
    def publish(self, letter, mark, type_, on_demand, priority, delay_us, expires_us, stamps):
        job_id = f"{letter}{next(self.job_numbers)}{mark}"
        self.compare(self._publish(job_id, type_, on_demand, priority, delay_us, expires_us, stamps))

    @often(
        4,
        letters=draw.lists(draw.sampled_from("abc"), min_size=2, max_size=6),
        some_marks=draw.lists(marks, min_size=2, max_size=3),
        type_indexes=some_indexes,
        delay_us=delays_us,
        expires_us=expiries_us,
        stamps=some_stamps,
        known=known_indexes,
        other_task=other_tasks,
    )
    def publish_together(self, letters, some_marks, type_indexes, delay_us, expires_us, stamps, known, other_task):
        """Publish several jobs in one invocation, the first with times and stamps; sometimes one of them twice."""
        ids = [
            f"{letter}{next(self.job_numbers)}{some_marks[nth % len(some_marks)]}" for nth, letter in enumerate(letters)
        ]
        jobs = [
            (job_id, TYPES[type_indexes[nth % len(type_indexes)] % len(TYPES)], nth % 3 == 0, nth % 11, 0)
            for nth, job_id in enumerate(ids)
        ]
        again = self.again(jobs, known, other_task)
        self.compare(self._publish_together([(*jobs[0][:4], delay_us, expires_us, stamps), *jobs[1:], *again]))

    @often(
        3,
        letters=draw.lists(draw.sampled_from("abc"), min_size=1, max_size=4),
        spoilt=draw.lists(draw.tuples(draw.integers(0, 3), spoilt_fields), min_size=1, max_size=2),
        type_=types,
        delay_us=delays_us,
    )
    def publish_spoilt(self, letters, spoilt, type_, delay_us):
        """Publish jobs, some of them with an invalid value."""
        jobs = [(f"{letter}{next(self.job_numbers)}", type_, False, 1, delay_us) for letter in letters]
        self.compare(self._publish_together(jobs, [(nth % len(jobs), *each) for nth, each in spoilt]))

    @often(
        8,
        letters=draw.lists(draw.sampled_from("abcp"), min_size=1, max_size=6),
        some_marks=draw.lists(marks, min_size=1, max_size=3),
        type_indexes=some_indexes,
        delay_us=delays_us,
        expires_us=expiries_us,
        most=draw.sampled_from([1, 1, 2, 3, 5, 8]),
        full=draw.sampled_from(["refuse", "refuse", "drop-oldest", "drop-oldest", "drop-newest"]),
        full_of_others=draw.sampled_from(["refuse", "drop-oldest", "drop-newest"]),
        known=known_indexes,
        other_task=other_tasks,
    )
    def publish_bounded(
        self, letters, some_marks, type_indexes, delay_us, expires_us, most, full, full_of_others, known, other_task
    ):
        """Publish jobs of bounded types. The first job has times; sometimes a job exists already."""
        ids = [
            f"{letter}{next(self.job_numbers)}{some_marks[nth % len(some_marks)]}" for nth, letter in enumerate(letters)
        ]
        if self.is_full or self.full_next:
            return  # refusals and drops of a full server are not modelled
        jobs = [
            (job_id, TYPES[type_indexes[nth % len(type_indexes)] % len(TYPES)], nth % 4 == 3, nth % 2, 0)
            for nth, job_id in enumerate(ids)
        ]
        bounded = {TYPES[0]: Bound(most, full), TYPES[1]: Bound(most + 1, full_of_others)}
        again = self.again(jobs, known, other_task)
        given = [(*jobs[0][:4], delay_us, expires_us), *jobs[1:], *again]
        self.compare(self._publish_together(given, bounded=bounded))

    @often(1, index=draw.integers(0, 20), type_=types, delay_us=delays_us, other_task=other_tasks)
    def publish_again(self, index, type_, delay_us, other_task):
        known = self.known_calls()
        if known:
            job = (known[-1 - index % len(known)], type_, False, 7, delay_us, None, (), other_task)
            self.compare(self._publish(*job))

    @often(4, number=draw.sampled_from([3, 3, 5, 5, 8, BURST]), type_=types, delay_us=delays_us, mark=marks)
    def publish_many(self, number, type_, delay_us, mark=""):
        if number == BURST and not self.has_room():
            return
        for each in range(number):
            more = self._publish(f"m{next(self.job_numbers)}{mark}", type_, each % 7 == 0, each % 3, delay_us)
        self.compare(more)

    @often(
        5,
        calls=draw.lists(
            draw.tuples(draw.sampled_from(["p", "p", "p", "pc"]), urgent, priorities, short_delays_us, expiries_us),
            min_size=2,
            max_size=6,
        ),
        mark=draw.sampled_from(["+", "+", "+!"]),
        type_=types,
        pauses=draw.lists(short_delays_us, min_size=1, max_size=3),
        then=draw.sampled_from(["tick", "tick", "tick", "revoke", "purge", "nothing"]),
    )
    def wait_for_more(self, calls, mark, type_, pauses, then):
        """Publish calls that collect others while time passes, and then let the time or more calls end the window."""
        for nth, (letter, on_demand, priority, delay_us, expires_us) in enumerate(calls):
            job_id = f"{letter}{next(self.job_numbers)}{mark}"
            self.compare(self._publish(job_id, type_, on_demand, priority, delay_us, expires_us))
            self.pass_time(pauses[nth % len(pauses)])
            if nth % 3 == 2:
                self.tick()
        if then == "tick":
            self.pass_time(SECOND_US)
            self.tick()
        elif then == "revoke":
            self._revoke([f"task of p {number}" for number in range(3)])
        elif then == "purge":
            self._purge(type_, [job.id for job in self.reference.jobs.values() if job.state == "scheduled"])

    @often(
        4,
        letters=draw.lists(draw.sampled_from("abc"), min_size=1, max_size=3),
        mark=marks,
        type_=types,
        priority=priorities,
        delay_us=delays_us,
        expires_us=expiries_us,
        stamps=some_stamps,
        how=draw.sampled_from(["in order", "in order", "in order", "in order", "in order", "another first", "again"]),
        readable=draw.sampled_from([True, True, True, False]),
        spoilt=draw.sampled_from([(), (), (), ("priority", "-5"), ("times", "nan"), ("id", "")]),
    )
    def ingest(self, letters, mark, type_, priority, delay_us, expires_us, stamps, how, readable, spoilt):
        """Send messages like stock Celery, and move them; sometimes a message is not next, or is moved twice."""
        jobs = [f"{letter}{next(self.job_numbers)}{mark}" for letter in letters]
        list_ = f"stock {type_}"
        waiting = self.reference.lists.setdefault(list_, [])
        for job_id in jobs:
            waiting.append(message_of(job_id))
            self.call("LPUSH", list_, waiting[-1], reply=len(waiting))
        ends = {"expires_us": expires_us, "stamps": stamps}
        for job_id in reversed(jobs) if how == "another first" else jobs * 2 if how == "again" else jobs:
            given, arguments = job_of(job_id, type_, priority == 9, priority, delay_us, **ends)
            if not readable:
                arguments |= {"task_id": "", "task_name": ""}
            arguments |= [spoilt] if spoilt else []
            if "id" in spoilt:
                is_next = self.reference.lists[list_][:1] == [given.message]
                wanted = [5, "", "id"] if is_next else [-1, "", 1]
                self.step("ingest", wanted, *in_order(arguments), list=list_, readable=1)
                continue
            is_good = readable and not spoilt
            reply = self.reference.ingest(list_, given, readable=is_good, now_us=self.now_us)
            wanted = [reply.state, Named(reply.unfilled), reply.served]
            self.step("ingest", wanted, *in_order(arguments), list=list_, readable=int(readable))
            self.compare(reply.unfilled)

    @often(1, index=draw.integers(0, 20), type_=types)
    def ingest_again(self, index, type_):
        """Move the next message of a list under a known id."""
        known = self.known_calls()
        if known:
            job_id = known[-1 - index % len(known)]
            list_, message = f"stock {type_}", message_of(job_id)
            waiting = self.reference.lists.setdefault(list_, [])
            waiting.insert(0, message)
            self.call("RPUSH", list_, message, reply=len(waiting))
            given, arguments = job_of(job_id, type_, False, 0, 0)
            reply = self.reference.ingest(list_, given, readable=True, now_us=self.now_us)
            wanted = [reply.state, Named(reply.unfilled), reply.served]
            self.step("ingest", wanted, *in_order(arguments), list=list_, readable=1)
            waiting.pop(0)
            self.call("RPOP", list_, reply=message)
            self.compare()
