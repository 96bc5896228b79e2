"""Moves of recurring calls: an app.conf or an operator declares them, and the due ones are fired."""

from celery_affinity.options.recurring import RecurringCall
from celery_affinity.schema import job_record
from celery_affinity.schema.constants import IS_KNOWN, IS_REFUSED
from celery_affinity.schema.rules_codec import decode_rules
from celery_affinity.schema.values import encode_part
from tests.conformance.reference.replies import NONE

from . import draw
from .both import Both, in_order, job_of, often
from .side_by_side import REFUSED, Named
from .vocabulary import APPS, MERGES, SECOND_US, TYPES, indexes, intervals_us, priorities

#: Names of recurring calls.
RECURRING = ("r1", "r2", "r 3", "r4")

#: Drawn parts of a call: type, merge rules, task, interval, start of the interval, signature.
a_call = draw.tuples(
    draw.sampled_from(RECURRING),
    draw.sampled_from([*TYPES[:1] * 2, *TYPES[1:]]),
    draw.sampled_from([0, 0, 3]),
    draw.sampled_from(["t0", "t1", "t2"]),
    intervals_us,
    draw.sampled_from(["enqueue", "enqueue", "end"]),
    draw.sampled_from(["{}", "{}", "a signature: \u00e9"]),
)


def _call(name, type_, merge, task, stale_after_us, since, signature):
    return RecurringCall(name, task, type_, decode_rules(MERGES[merge]).merge.key, stale_after_us, since, signature)


class RecurringCalls(Both):
    """Moves of recurring calls."""

    @often(4, some=draw.lists(a_call, min_size=1, max_size=3), app=draw.sampled_from(["", "", *APPS]))
    def recur(self, some, app):
        """Declare calls: at run time, or as the complete list of an app.conf."""
        calls = [_call(*each) for each in some]
        replaced, refused = self.reference.declare_recurring(calls, app=app, now_us=self.now_us)
        wanted = [[encode_part(name) for name in names] for names in (replaced, refused)]
        self.step(
            "declare_recurring", wanted, *(part for each in calls for part in each.arguments), app=encode_part(app)
        )
        if app:
            gone = sorted(self.reference.recurring_of.get(app, {}).keys() - {each.name for each in calls})
            self._stop(gone, app)
        self.compare()

    @often(2, index=indexes)
    def stop(self, index):
        self._stop([self.pick_recurring(index)])
        self.compare()

    def _stop(self, names, app=""):
        self.step(
            "remove_recurring",
            self.reference.remove_recurring(names, app=app),
            *map(encode_part, names),
            app=encode_part(app),
        )

    def pick_recurring(self, index):
        known = [*self.reference.recurring]
        return known[index % len(known)] if known and index % 10 else RECURRING[index % len(RECURRING)]

    @often(2, index=indexes, suspended=draw.booleans())
    def suspend(self, index, suspended):
        name = self.pick_recurring(index)
        found = self.reference.pause_recurring(name, suspended=suspended, now_us=self.now_us)
        self.step("pause_recurring", int(found), name=encode_part(name), suspended=int(suspended))
        self.compare()

    @often(
        5,
        app=draw.sampled_from(APPS),
        again_us=draw.sampled_from([0, SECOND_US, 10 * SECOND_US]),
        then=draw.sampled_from(["fire", "fire", "fire", "leave", "nothing", "match"]),
        like=draw.booleans(),
        priority=priorities,
        delay_us=draw.sampled_from([0, 0, 0, SECOND_US]),
    )
    def make_what_is_due(self, app, again_us, then, like, priority, delay_us):
        found = self._due(app, again_us)
        if found and then == "leave":
            left = self.reference.decline_recurring(found.name, app=app, now_us=self.now_us)
            self.step("decline_recurring", int(left), name=encode_part(found.name), app=encode_part(app))
        if found and then == "match":
            self.compare(self._publish(self.firing(found.name, like=True), *self.shape(found.name, priority)))
        more = NONE
        if found and then in ("fire", "match"):
            more = self._fire(found.name, found.due, self.firing(found.name, like), priority, delay_us)
        self.compare(more)

    @often(
        3,
        index=indexes,
        late_us=draw.sampled_from([0, 0, 1, SECOND_US]),
        times=draw.integers(1, 3),
        like=draw.booleans(),
    )
    def let_some_be_due(self, index, late_us, times, like):
        """Repeatedly let time pass until a call is due, tick, and fire it, so that firings merge."""
        name = self.pick_recurring(index)
        for _ in range(times):
            known = self.reference.recurring.get(name)
            if known is None or known.handed_out_us is None:
                return
            self.pass_time(max(0, known.handed_out_us + late_us - self.now_us))
            self.tick()
            found = self._due("shop", SECOND_US)
            more = self._fire(found.name, found.due, self.firing(found.name, like), 0, 0) if found else NONE
            self.compare(more)

    @often(1, index=indexes, like=draw.booleans())
    def fire_by_hand(self, index, like):
        name = self.pick_recurring(index)
        self.compare(self._fire(name, "", self.firing(name, like), 0, 0))

    @often(1, index=indexes, due_us=draw.sampled_from([-1, 0, 1]), again=draw.booleans(), field=draw.booleans())
    def fire_amiss(self, index, due_us, again, field):
        """Fire a call that is not due, or under the id of an existing job, or with an invalid field."""
        name = self.pick_recurring(index)
        known = self.reference.recurring.get(name)
        due = str(known.due_us + due_us) if known else "1"
        jobs = [job.id for job in self.reference.jobs.values() if not job.callers]
        job_id = jobs[index % len(jobs)] if again and jobs else self.firing(name, like=True)
        more = self._fire(name, due, job_id, 0, 0, {"priority": "-5"} if field else {})
        self.compare(more)

    def firing(self, name, like):
        """Return the id of a job for a recurring call. *like*: an id with the same merge rules, if there is one."""
        known = self.reference.recurring.get(name)
        for _ in range(60 if like and known else 1):
            job_id = f"f{next(self.job_numbers)}+"
            job, _ = job_of(job_id, known.call.type if known else TYPES[0], False, 0, 0)
            wanted = known and (known.call.merge_key, known.call.task)
            if (decode_rules(job.rules).merge.key, job.task_name) == wanted:
                break
        return job_id

    def shape(self, name, priority):
        known = self.reference.recurring.get(name)
        return known.call.type if known else TYPES[0], False, priority, 0

    def _due(self, app, again_us):
        found = self.reference.due_recurring(app=app, again_us=again_us, now_us=self.now_us)
        wanted = [encode_part(found.name), *found[1:]] if found else []
        self.step("due_recurring", wanted, again_us=again_us, app=encode_part(app))
        return found

    def _fire(self, name, due, job_id, priority, delay_us, spoilt=()):
        type_, *_ = self.shape(name, priority)
        given, arguments = job_of(job_id, type_, False, priority, delay_us)
        arguments |= spoilt
        rest = in_order(arguments)
        if self.full_next:
            self.step("fire_recurring", REFUSED, *rest, name=encode_part(name), due=due)
            return NONE
        known = self.reference.recurring.get(name)
        job = job_record.first_invalid_field(rest) or given  # the id may belong to a batch
        due_us = known.due_us if known else 0
        reply = self.reference.fire_recurring(name, due, job, now_us=self.now_us)
        if reply and reply.state != IS_REFUSED:
            if due and reply.state != IS_KNOWN:
                self.recurrence.made(name, due, self.reference, due_us, self.now_us)
            self.recurrence.requested(name, self.now_us)
        wanted = [] if reply is None else [reply.state, Named(reply.unfilled), reply.refused or reply.served]
        self.step("fire_recurring", wanted, *rest, name=encode_part(name), due=due)
        assert reply is None or reply.state != IS_REFUSED or job is not given
        return reply.unfilled if reply else NONE
