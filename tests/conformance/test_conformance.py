"""Every arrow against the reference: random steps on a real server, and after each the whole state, compared.

``CONFORMANCE_STEPS`` says how many steps, ``CONFORMANCE_SEED`` which: ``make conformance`` sets them. A failure is made
smaller before it is shown, unless ``CONFORMANCE_SHRINK`` is 0.
"""

import os
import random
import zlib
from collections import Counter
from itertools import count

from celery_affinity.reference.model import NewJob
from celery_affinity.reference.replies import NONE
from celery_affinity.rules import job_fields
from celery_affinity.rules.keys import encode
from celery_affinity.rules.protocol import MOST_MOVES, MOST_PURGED

from . import draw
from .invariants import idle_types
from .mirror import KEYS, payload, profile
from .side_by_side import REFUSED, Named, SideBySide
from .vocabulary import (
    APPS,
    BURST,
    CROSSING,
    GONE,
    NAMES,
    SECOND_US,
    SHARP_RARITY,
    STAMPS,
    TYPES,
    WORKERS,
    delays_us,
    expiries_us,
    indexes,
    others,
    outcomes,
    priorities,
    slots,
    some_indexes,
    some_settings,
    some_stamps,
    some_types,
    spoilt_fields,
    times_us,
    types,
)
from .walk import Moves, run
from .wire import Wire

STEPS = int(os.environ.get("CONFORMANCE_STEPS", "10000"))
SEED = int(os.environ.get("CONFORMANCE_SEED") or random.randrange(2**32))
SHRINK = os.environ.get("CONFORMANCE_SHRINK") != "0"
STEPS_IN_A_RUN = 100  # the state grows with the steps, and with it the cost of one

moves = Moves()
often = moves.often


def _message(job_id):
    """Return the message of a job; two of those with a "c" are more than one call moves."""
    return f"message of {job_id}\n\\u00e9{'.' * (1_500 if job_id.startswith('c') else 0)}"


def _job(job_id, type_, on_demand, priority, delay_us, expires_us=None, stamps=()):
    """Return a job as the reference takes it, and as the scripts do."""
    # All jobs that a walk has end together are of one task, of others some.
    task_id = f"task of {job_id[:1]} {zlib.crc32(job_id.encode()) % (1 if job_id.startswith('e') else 3)}"
    message = _message(job_id)
    given = NewJob(job_id, type_, on_demand, priority, delay_us, task_id, "t", message, expires_us, stamps)
    arguments = {
        "id": job_id,
        "type": encode(type_),
        "mode": "demand" if on_demand else "queued",
        "priority": priority,
        "delay_us": delay_us,
        "task_id": encode(task_id),
        "task_name": "t",
        "message": message,
        "expires_us": "" if expires_us is None else expires_us,
        "stamps": " ".join(stamps),
    }
    return given, arguments


def _in_order(arguments):
    return [arguments[name] for name in job_fields.FIELDS]


class Conformance(SideBySide):
    """The moves of the two."""

    moves = moves

    def __init__(self, wire, tally):
        super().__init__(wire, tally)
        self.job_numbers, self.sequences = count(), count()
        self.released = None
        self.has_bursts = False

    def pick_worker(self, index):
        live = sorted(self.reference.workers)
        return live[index % len(live)] if live and index < GONE else WORKERS[index % len(WORKERS)]

    def pick_claims(self, some_indexes):
        """Return a worker and claims: its own, but for a stale one or another's."""
        held = [claim for claim in self.granted if self.is_held(*claim)]
        if not self.granted:
            return WORKERS[0], [("no job", 1)]
        worker = held[some_indexes[0] % len(held)][0] if held else WORKERS[0]
        own = [claim for claim in held if claim[0] == worker]
        own_jobs = {claim[1] for claim in own}
        past = [claim for claim in self.granted if claim[0] == worker and claim[1] in own_jobs and claim not in own]
        picked = []
        for index in some_indexes:
            choice = own if own and index < GONE else past if past and index % 2 else self.granted
            picked.append(choice[-1 - index % len(choice)][1:])
        return worker, picked

    def begin(self, choices):
        """Return the first move: a fleet."""
        fleet = draw.lists(draw.tuples(some_types, slots), min_size=2, max_size=5)
        return "enter", {
            "fleet": fleet(choices),
            "goes_on": draw.booleans()(choices),
            "has_bursts": draw.sampled_from([False, False, True])(choices),
            "is_full": draw.sampled_from([False, False, False, True])(choices),
            "given_settings": some_settings(choices),
        }

    def enter(self, fleet, goes_on, has_bursts, is_full, given_settings):
        self.goes_on, self.is_full = goes_on, is_full
        self.has_bursts = has_bursts  # of more jobs than one call moves: they make every later step slow
        for worker, (given, number) in zip(WORKERS, fleet, strict=False):
            self._join(worker, given, number, 0, given_settings)

    # -- jobs

    def _publish(self, job_id, *job):
        return self._publish_together([(job_id, *job)])

    def _publish_together(self, jobs, spoilt=()):
        """Publish *jobs* in one call. *spoilt*: (which of them, a field, what stands there that is not accepted)."""
        given, arguments = map(list, zip(*(_job(*job) for job in jobs), strict=True))
        for nth, field, value in spoilt:
            arguments[nth][field] = value
            given[nth] = job_fields.bad(_in_order(arguments[nth]))
        rest = [value for each in arguments for value in _in_order(each)]
        good = [job[0] for job, each in zip(jobs, given, strict=True) if not isinstance(each, str)]
        if self.full_next and not all(each in self.reference.jobs for each in good):
            self.step("publish", REFUSED, *rest)
            return NONE
        first, *further = self.reference.publish(given, now_us=self.now_us)
        pairs = (value for each in further for value in (each.state, each.refused or each.served))
        reply = [first.state, Named(first.more), first.refused or first.served, *pairs]
        self.step("publish", reply, *rest)
        return first.more

    @often(
        4,
        letters=draw.lists(draw.sampled_from("abc"), min_size=1, max_size=3),
        type_=types,
        priority=priorities,
        delay_us=delays_us,
        expires_us=expiries_us,
        stamps=some_stamps,
        how=draw.sampled_from(["in order", "in order", "in order", "in order", "in order", "another first", "again"]),
        readable=draw.sampled_from([True, True, True, False]),
        spoilt=draw.sampled_from([(), (), (), ("priority", "-5"), ("delay_us", "nan"), ("id", "")]),
    )
    def ingest(self, letters, type_, priority, delay_us, expires_us, stamps, how, readable, spoilt):
        """Send some messages as stock Celery does, and move them; now and then one that is not next, or one twice."""
        jobs = [f"{letter}{next(self.job_numbers)}" for letter in letters]
        list_ = f"stock {type_}"
        waiting = self.reference.lists.setdefault(list_, [])
        for job_id in jobs:
            waiting.append(_message(job_id))
            self.call("LPUSH", list_, waiting[-1], reply=len(waiting))
        ends = {"expires_us": expires_us, "stamps": stamps}
        for job_id in reversed(jobs) if how == "another first" else jobs * 2 if how == "again" else jobs:
            given, arguments = _job(job_id, type_, priority == 9, priority, delay_us, **ends)
            if not readable:
                arguments |= {"task_id": "", "task_name": ""}
            arguments |= [spoilt] if spoilt else []
            if "id" in spoilt:
                is_next = self.reference.lists[list_][:1] == [given.message]
                wanted = [5, "", "id"] if is_next else [-1, "", 1]
                self.step("ingest", wanted, *_in_order(arguments), list=list_, readable=1)
                continue
            is_good = readable and not spoilt
            reply = self.reference.ingest(list_, given, readable=is_good, now_us=self.now_us)
            wanted = [reply.state, Named(reply.more), reply.served]
            self.step("ingest", wanted, *_in_order(arguments), list=list_, readable=int(readable))
            self.compare(reply.more)

    @often(1, index=draw.integers(0, 20), type_=types)
    def ingest_again(self, index, type_):
        """Move what is next in a list under an id that is known."""
        known = list(self.reference.jobs)
        if known:
            job_id = known[-1 - index % len(known)]
            list_, message = f"stock {type_}", _message(job_id)
            waiting = self.reference.lists.setdefault(list_, [])
            waiting.insert(0, message)
            self.call("RPUSH", list_, message, reply=len(waiting))
            given, arguments = _job(job_id, type_, False, 0, 0)
            reply = self.reference.ingest(list_, given, readable=True, now_us=self.now_us)
            wanted = [reply.state, Named(reply.more), reply.served]
            self.step("ingest", wanted, *_in_order(arguments), list=list_, readable=1)
            waiting.pop(0)
            self.call("RPOP", list_, reply=message)
            self.compare()

    @often(
        12,
        letter=draw.sampled_from("abc"),
        type_=types,
        on_demand=draw.booleans(),
        priority=priorities,
        delay_us=delays_us,
        expires_us=expiries_us,
        stamps=some_stamps,
    )
    def publish(self, letter, type_, on_demand, priority, delay_us, expires_us, stamps):
        job_id = f"{letter}{next(self.job_numbers)}"
        self.compare(self._publish(job_id, type_, on_demand, priority, delay_us, expires_us, stamps))

    @often(
        4,
        letters=draw.lists(draw.sampled_from("abc"), min_size=2, max_size=6),
        type_indexes=some_indexes,
        delay_us=delays_us,
        expires_us=expiries_us,
        stamps=some_stamps,
        known=draw.sampled_from([False, False, False, True]),
    )
    def publish_together(self, letters, type_indexes, delay_us, expires_us, stamps, known):
        """Publish several jobs in one call, of which the first has times and stamps; now and then one of them twice."""
        ids = [f"{letter}{next(self.job_numbers)}" for letter in letters]
        ids += (ids[:1] + list(self.reference.jobs)[-1:]) if known else []
        jobs = [
            (job_id, TYPES[type_indexes[nth % len(type_indexes)] % len(TYPES)], nth % 3 == 0, nth % 11, 0)
            for nth, job_id in enumerate(ids)
        ]
        self.compare(self._publish_together([(*jobs[0][:4], delay_us, expires_us, stamps), *jobs[1:]]))

    @often(
        3,
        letters=draw.lists(draw.sampled_from("abc"), min_size=1, max_size=4),
        spoilt=draw.lists(draw.tuples(draw.integers(0, 3), spoilt_fields), min_size=1, max_size=2),
        type_=types,
        delay_us=delays_us,
    )
    def publish_spoilt(self, letters, spoilt, type_, delay_us):
        """Publish jobs of which some say what is not accepted."""
        jobs = [(f"{letter}{next(self.job_numbers)}", type_, False, 1, delay_us) for letter in letters]
        self.compare(self._publish_together(jobs, [(nth % len(jobs), *each) for nth, each in spoilt]))

    @often(1, index=draw.integers(0, 20), type_=types, delay_us=delays_us)
    def publish_again(self, index, type_, delay_us):
        known = list(self.reference.jobs)
        if known:
            self.compare(self._publish(known[-1 - index % len(known)], type_, False, 7, delay_us))

    @often(4, number=draw.sampled_from([3, 3, 5, 5, 8, BURST]), type_=types, delay_us=delays_us)
    def publish_many(self, number, type_, delay_us):
        if number == BURST and not self.has_room():
            return
        for each in range(number):
            more = self._publish(f"m{next(self.job_numbers)}", type_, each % 7 == 0, each % 3, delay_us)
        self.compare(more)

    @often(
        3,
        jobs=draw.lists(draw.tuples(types, draw.booleans(), priorities), min_size=3, max_size=6),
        times=draw.sampled_from([1, 1, 1, 8]),
        given_settings=draw.sampled_from([{}, SHARP_RARITY, SHARP_RARITY | {"rarity": "capacity"}]),
    )
    def see_many_fall_due(self, jobs, times, given_settings):
        """Have one tick choose among jobs of several types, each with free slots: rarely does any other arrow."""
        if times > 1 and not self.has_room():
            return
        self._configure(given_settings)
        for type_, on_demand, priority in jobs * times:
            self._publish(f"d{next(self.job_numbers)}", type_, on_demand, priority, SECOND_US)
        self.compare()
        self.pass_time(SECOND_US)
        self.tick()
        if self.owed:
            self.go_on(tuple(sorted({type_ for type_, *_ in jobs})))

    @often(
        3,
        worker=draw.sampled_from(WORKERS),
        given=some_types,
        slots=draw.sampled_from([BURST, BURST, MOST_MOVES]),
        end=draw.sampled_from(["it leaves", "it is silent", "its guard reports it", "its guard reports it"]),
        percentage=draw.sampled_from(["100", "50", "0"]),
        is_full=draw.sampled_from([False, True, True]),
    )
    def meet_a_backlog(self, worker, given, slots, end, percentage, is_full):
        """Join with more slots than two calls can fill, and as many jobs waiting; then go, and purge the rest."""
        given = tuple(type_ for type_ in given if type_ not in idle_types(self.reference))
        if not given or not self.has_room():
            return
        self.has_bursts, self.is_full = False, is_full
        self._configure({"priority_percentage": percentage})
        for number in range(BURST):
            self._publish(f"n{next(self.job_numbers)}", given[number % len(given)], False, number % 3, 0)
        self._join(worker, given, slots, 0, {})
        if end == "it is silent":
            self._be_silent(11, 3 * SECOND_US, {worker})
        elif end == "its guard reports it":
            if self.owed:
                self.go_on(given)  # until it holds more than one call takes back
            self._recover(worker)
            self._beat(worker, turns=True)
        self._leave(worker)
        for type_ in given:
            self._purge(type_)

    @often(
        3,
        index=indexes,
        lanes=draw.lists(draw.tuples(draw.booleans(), draw.integers(0, 10)), min_size=4, max_size=8),
        times=draw.lists(draw.sampled_from([0, 1, SECOND_US // 2, SECOND_US, 3 * SECOND_US]), min_size=6, max_size=12),
        given_settings=draw.sampled_from([{}, CROSSING, CROSSING | {"on_demand_age_cap_us": "60000000"}]),
        outcome=outcomes,
    )
    def overtake(self, index, lanes, times, given_settings, outcome):
        """Have jobs of many lanes of a type be taken one by one, while those on demand gain on the others."""
        worker = self.pick_worker(index)
        known = self.reference.workers.get(worker)
        if not known or not known.types or self.has_bursts:
            return
        self._configure({"priority_percentage": "100", **given_settings})
        type_ = min(known.types)
        for turn in range(2):
            for nth, (on_demand, priority) in enumerate(lanes):
                job_id = f"{'o' * (1 + (nth + turn) % 3)}{next(self.job_numbers)}"  # ids of several lengths
                self.compare(self._publish(job_id, type_, on_demand, priority, 0))
                self.pass_time(times[nth % len(times)] // 4 * turn)
        for by_us in times:
            self.pass_time(by_us)
            self.work(sorted(self.reference.workers).index(worker), 1, False, 0, [outcome])
            if worker not in self.reference.workers:
                return

    def has_room(self):
        """Return whether one purge still deletes all after a burst: which jobs it would leave is not said."""
        return self.has_bursts and len(self.reference.jobs) + 2 * BURST < MOST_PURGED

    @often(
        3,
        number=draw.sampled_from([1, 1, 2, 5, MOST_MOVES + 2]),
        how=draw.sampled_from(["expire", "expire unseen", "expire unseen", "stamp", "task"]),
        index=indexes,
        most_ahead=draw.sampled_from((0, 0, 2, 12)),
        outcome=outcomes,
    )
    def end_many(self, number, how, index, most_ahead, outcome):
        """Have jobs that wait end, more than one call looks at, now and then; or expire before a tick sees them."""
        for each in range(number):
            expires_us = SECOND_US if how.startswith("expire") else None
            stamps = STAMPS[:1] if how == "stamp" else ()
            delay_us = 64 * SECOND_US if each % 2 and how != "expire unseen" else 0
            self._publish(f"e{next(self.job_numbers)}", TYPES[0], False, each % 3, delay_us, expires_us, stamps)
        self.compare()
        if how == "expire":
            self.pass_time(SECOND_US)
            self.tick()
        elif how == "expire unseen":
            self.publish_many(1, TYPES[0], 0)
            self.pass_time(SECOND_US)
            self.work(index, 1, False, most_ahead, [outcome])
        elif how == "stamp":
            self._revoke_stamped(STAMPS[:1])
        else:
            self._revoke([f"task of e {number}" for number in range(3)])

    @often(2, letter=draw.sampled_from("abem"), numbers=draw.lists(draw.integers(0, 2), min_size=1, max_size=2))
    def revoke(self, letter, numbers):
        self._revoke([f"task of {letter} {number}" for number in numbers])

    def _revoke(self, task_ids, after=0):
        ended, left, last = self.reference.revoke(task_ids, after=after, now_us=self.now_us)
        self.step("revoke", [ended, left, last], *map(encode, task_ids), by="task", keep_s=60, after=after)
        self.compare()
        if left:
            self._revoke(task_ids[-left:], last)

    @often(1, stamps=draw.sampled_from([STAMPS[:1], STAMPS[:2], STAMPS[2:]]))
    def revoke_stamped(self, stamps):
        self._revoke_stamped(stamps)

    def _revoke_stamped(self, stamps):
        ended, left, _ = self.reference.revoke_stamped(stamps, now_us=self.now_us)
        self.step("revoke", [ended, left, 0], *stamps, by="stamp", keep_s=60, after=0)
        self.compare()

    @often(
        8,
        app=draw.sampled_from(APPS),
        again_us=draw.sampled_from([0, 1, SECOND_US, 200 * SECOND_US]),
        leaves=draw.booleans(),
        some_indexes=some_indexes,
    )
    def announce(self, app, again_us, leaves, some_indexes):
        """Ask for an end, now and then while some are being told, and leave it to others, now and then."""
        untold = [*self.reference.untold, "no-job"]
        telling = [untold[index % len(untold)] for index in some_indexes if index >= GONE]
        ending = self.reference.announce(app=app, telling=telling, again_us=again_us, now_us=self.now_us)
        self.step("announce", _as_found(ending), *telling, app=encode(app), again_us=again_us)
        if ending and leaves:
            left = self.reference.leave_to_others([ending.job_id], app=app, now_us=self.now_us)
            self.step("told", left, ending.job_id, how="left", app=encode(app))
        self.compare()

    @often(4, some_indexes=some_indexes)
    def tell(self, some_indexes):
        """Say of some ends, and now and then of another job, that they were told."""
        choices = [list(self.reference.untold), [*self.reference.jobs, "no-job"]]
        picks = [choices[0] if choices[0] and index < GONE else choices[1] for index in some_indexes]
        ids = [choice[index % len(choice)] for choice, index in zip(picks, some_indexes, strict=True)]
        self.told_at_us |= {job_id: self.now_us for job_id in ids if job_id in self.reference.untold}
        self.step("told", self.reference.told(ids), *ids, how="told", app="")
        self.compare()

    @often(1, type_=types, some_indexes=some_indexes)
    def purge(self, type_, some_indexes):
        known = [*self.reference.jobs, "no-job"]
        waiting = [job.id for job in self.reference.jobs.values() if job.state == "scheduled"] or known
        picks = [waiting if index < GONE else known for index in some_indexes]
        self._purge(type_, [choice[index % len(choice)] for choice, index in zip(picks, some_indexes, strict=True)])

    def _purge(self, type_, scheduled=()):
        """Purge to the end: it is not said which jobs go first."""
        again = True
        while again:
            deleted, again = self.reference.purge(type_, scheduled)
            self.step("purge", [deleted, again], *scheduled, type=encode(type_))
            scheduled = ()
        self.compare()

    @often(2, given=some_types, as_told=draw.booleans())
    def claim(self, given, as_told):
        self.go_on(self.owed if as_told else given)

    # -- workers

    @often(
        5,
        worker=draw.sampled_from(WORKERS),
        given=some_types,
        slots=slots,
        other=others,
        app=draw.sampled_from(APPS),
        given_settings=some_settings,
        as_before=draw.booleans(),
    )
    def join(self, worker, given, slots, other, app, given_settings, as_before):
        if as_before:
            given_settings = self.reference.settings.conf_of.get(app, {}) | given_settings
        self._join(worker, given, slots, other, given_settings, app)

    def _join(self, worker, given, slots, other, given_settings, app="shop"):
        reply = self.reference.join(
            worker,
            name=NAMES[worker],
            types=given,
            slots=slots,
            other=other,
            app=app,
            settings=given_settings,
            now_us=self.now_us,
        )
        self.step(
            "join",
            [Named(reply.more), reply.namesake or "", reply.replaced, reply.void_up_to, reply.now_us],
            *(part for pair in given_settings.items() for part in pair),
            worker=worker,
            name=encode(NAMES[worker]),
            slots_in_all=slots,
            other=other,
            profile=profile(given),
            types=" ".join(sorted(map(encode, given))),
            app=encode(app),
        )
        self.compare(reply.more)

    @often(
        1,
        worker=draw.sampled_from(WORKERS),
        said=draw.lists(draw.tuples(draw.sampled_from(APPS), draw.sampled_from(["1", "2"])), min_size=3, max_size=4),
    )
    def versions_alternate(self, worker, said):
        """Join and leave, as old and new versions of apps do while they are rolled out."""
        for app, deliveries in said:
            self._leave(worker)
            self._join(worker, TYPES[:1], 1, 0, {"max_deliveries": deliveries}, app)

    @often(
        8,
        index=indexes,
        forgotten=draw.sampled_from([(), (0,), (1, 3), (0, 1, 2, 3, 4)]),
        stale=draw.lists(indexes, max_size=2),
        slots=draw.sampled_from([None, None, None, None, None, 0, 1, 2, 4]),
        other=others,
        draining=draw.sampled_from([False] * 4 + [True]),
    )
    def sync(self, index, forgotten, stale, slots, other, draining):
        worker = self.pick_worker(index)
        known = self.reference.workers.get(worker)
        held = [
            (*each, number * 1_000_000 - 1)
            for number, each in enumerate(known.claims.items() if known else ())
            if number % 5 not in forgotten
        ]
        held += [(*self.granted[-1 - index % len(self.granted)][1:], 0) for index in stale if self.granted]
        now_slots = slots if slots is not None or not known else known.slots
        self._sync(worker, held, now_slots or 0, other, draining)

    @often(2, index=indexes, beyond_us=draw.sampled_from([-1, 0, 1]))
    def sync_one_beat_later(self, index, beyond_us):
        """Sync, naming nothing, when the worker's last claim is just so old that it may be asked about."""
        known = self.reference.workers.get(self.pick_worker(index))
        if known and known.claims:
            claimed_us = max(self.reference.jobs[job_id].claimed_us for job_id in known.claims)
            beat_us = int(self.reference.settings.get("heartbeat_interval_us"))
            self.pass_time(max(0, claimed_us + beat_us + beyond_us - self.now_us))
            self._sync(known.id, [], known.slots, known.other, draining=False)

    def _sync(self, worker, held, slots, other, draining):
        reply = self.reference.sync(worker, held, slots=slots, other=other, draining=draining, now_us=self.now_us)
        self.step(
            "sync",
            [
                reply.known,
                reply.ticker,
                Named(reply.more),
                [str(part) for pair in reply.asked for part in pair],
                reply.void,
                reply.revision,
                reply.now_us,
                reply.returned,
            ],
            *(part for pair in held for part in pair),
            worker=worker,
            slots_in_all=slots,
            other=other,
            draining=int(draining),
        )
        self.compare(reply.more)

    @often(5, index=indexes, turns=draw.booleans())
    def beat(self, index, turns):
        self._beat(self.pick_worker(index), turns)

    def _beat(self, worker, turns):
        reply = self.reference.beat(worker, turns=turns, now_us=self.now_us)
        self.step("beat", [reply.known, reply.again, Named(reply.more)], worker=worker, turns=int(turns))
        self.compare(reply.more)

    @often(2, index=indexes)
    def recover(self, index):
        self._recover(self.pick_worker(index))

    def _recover(self, worker):
        reply = self.reference.recover(worker, now_us=self.now_us)
        self.step("recover", [reply.again, reply.recovered, Named(reply.more)], worker=worker)
        self.compare(reply.more)

    @often(2, index=indexes)
    def leave(self, index):
        self._leave(self.pick_worker(index))

    def _leave(self, worker):
        more, unfinished, returned = self.reference.leave(worker, now_us=self.now_us)
        self.step("leave", [Named(more), unfinished, returned], worker=worker)
        self.compare(more)
        if unfinished:
            self._leave(worker)

    @often(3, index=indexes, number=draw.integers(1, 3))
    def read(self, index, number):
        for _ in range(number):
            self._read(self.pick_worker(index))
        self.compare()

    def _read(self, worker):
        inbox = self.reference.workers[worker].inbox if worker in self.reference.workers else []
        self.call("RPOP", KEYS.key("inbox", worker), reply=payload(inbox.pop(0)) if inbox else None)

    @often(
        8,
        index=indexes,
        number=draw.integers(1, 4),
        early=draw.booleans(),
        most_ahead=draw.sampled_from((0, 0, 1, 3)),
        outcomes=draw.lists(outcomes, min_size=4, max_size=4),
    )
    def work(self, index, number, early, most_ahead, outcomes):
        """Do as a worker does: read a job, ack it early or at its end, release its slot and go on with what it got."""
        worker = self.pick_worker(index)
        for outcome in outcomes[:number]:
            self._read(worker)
            held = self.reference.workers[worker].claims if worker in self.reference.workers else {}
            if not held:
                return
            claim = next(iter(held.items()))
            if early:
                self._ack(worker, [claim])
            self.released = worker, str(next(self.sequences)), [(*claim, outcome)], True, most_ahead
            self._release(*self.released)

    @often(3, changes=some_settings, resets=some_settings)
    def configure(self, changes, resets):
        self._configure(dict.fromkeys(resets, "") | changes)

    def _configure(self, changes):
        reply = self.reference.configure(changes)
        self.step("configure", reply, *(part for pair in changes.items() for part in pair))
        self.compare()

    # -- dead letters

    @often(2, indexes=some_indexes)
    def replay(self, indexes):
        ids = self.pick_dead(indexes)
        more, replayed = self.reference.replay(ids, now_us=self.now_us)
        self.step("replay", [Named(more), *replayed], *ids)
        self.compare(more)

    @often(1, indexes=some_indexes)
    def lose_a_message(self, indexes):
        """Have the message of a dead letter be gone, as somebody may delete it."""
        for job_id in self.pick_dead(indexes):
            job = self.reference.jobs.get(job_id)
            if job and job.state == "dead" and job.message is not None:
                job.message = None
                self.call("UNLINK", KEYS.key("message", job_id), reply=1)
        self.compare()

    @often(1, indexes=some_indexes)
    def drop(self, indexes):
        ids = self.pick_dead(indexes)
        self.step("drop", self.reference.drop(ids), *ids)
        self.compare()

    def pick_dead(self, some_indexes):
        """Return ids of dead letters, and now and then of another job, or of none."""
        dead = [job.id for job in self.reference.jobs.values() if job.state == "dead"]
        others = [*self.reference.jobs, "no-job"]
        picks = [dead if dead and index < GONE else others for index in some_indexes]
        return [choice[index % len(choice)] for choice, index in zip(picks, some_indexes, strict=True)]

    # -- claims

    @often(3, indexes=some_indexes)
    def ack(self, indexes):
        self._ack(*self.pick_claims(indexes))

    def _ack(self, worker, acks):
        acked = self.reference.ack(worker, acks)
        self.step("ack", acked, *(part for pair in acks for part in pair), worker=worker)
        self.compare()

    @often(
        8, indexes=some_indexes, outcome=outcomes, inline=draw.booleans(), most_ahead=draw.sampled_from((0, 0, 2, 12))
    )
    def release(self, indexes, outcome, inline, most_ahead=0):
        worker, claims = self.pick_claims(indexes)
        self.released = worker, str(next(self.sequences)), [(*claim, outcome) for claim in claims], inline, most_ahead
        self._release(*self.released)

    @often(3, lost=draw.booleans())
    def release_again(self, lost):
        """Repeat a call whose reply was lost, and with it, maybe, a job that it carried."""
        if not self.released:
            return
        known = self.reference.workers.get(self.released[0])
        if lost and known and known.granted:
            self._requeue(known.id, known.granted[:1], counted=False)
        self._release(*self.released)

    def _release(self, worker, sequence, ends, inline, most_ahead):
        reply = self.reference.release(worker, sequence, ends, inline=inline, most_ahead=most_ahead, now_us=self.now_us)
        self.step(
            "release",
            [Named(reply.more), *map(payload, reply.deliveries)],
            *(part for end in ends for part in end),
            worker=worker,
            sequence=sequence,
            caller=int(inline),
            most_ahead=most_ahead,
        )
        self.compare(reply.more)

    @often(4, indexes=some_indexes, counted=draw.booleans())
    def requeue(self, indexes, counted):
        self._requeue(*self.pick_claims(indexes), counted)

    def _requeue(self, worker, claims, counted):
        more = self.reference.requeue(worker, claims, counted=counted, now_us=self.now_us)
        rest = [part for pair in claims for part in pair]
        self.step("requeue", [Named(more)], *rest, worker=worker, counted=int(counted))
        self.compare(more)

    # -- time

    @often(8, by_us=times_us)
    def pass_some_time(self, by_us):
        self.pass_time(by_us)

    @often(
        3, index=indexes, outcome=outcomes, on_demand=draw.booleans(), priority=priorities, some_indexes=some_indexes
    )
    def set_the_clock_back(self, index, outcome, on_demand, priority, some_indexes):
        """Set the clock back for the time of a publish and a release: what waits was published in the future."""
        self.pass_time(-400 * SECOND_US)
        worker = self.pick_worker(index)
        known = self.reference.workers.get(worker)
        for type_ in sorted(known.types) if known else TYPES:
            self.publish("b", type_, on_demand, priority, 0, None, ())
        self.release(some_indexes, outcome, inline=True)
        self.pass_time(400 * SECOND_US)

    @often(5)
    def tick(self):
        lists = [f"stock {type_}" for type_ in TYPES]
        reply = self.reference.tick(lists, now_us=self.now_us)
        next_due_us = -1 if reply.next_due_us is None else reply.next_due_us
        counts = [reply.due, reply.recovered, reply.dead_workers, reply.untold]
        self.step("tick", [reply.again, str(next_due_us), *counts, reply.lists, Named(reply.more)], *lists)
        self.compare(reply.more)

    @often(
        2,
        times=draw.sampled_from([2, 2, 4, 11]),
        by_us=draw.sampled_from([1_000_000, 3_000_000]),
        mute=draw.lists(indexes, max_size=2),
    )
    def silence(self, times, by_us, mute):
        """Let time pass, ticked all the while: only then does silence count."""
        self._be_silent(times, by_us, {self.pick_worker(index) for index in mute})

    def _be_silent(self, times, by_us, mute):
        for _ in range(times):
            self.pass_time(by_us)
            for worker in sorted(self.reference.workers.keys() - mute):
                known = self.reference.workers[worker]
                if 2 * (self.now_us - known.seen_us) > int(self.reference.settings.get("worker_timeout_us")):
                    self._sync(
                        worker,
                        [(*each, -1) for each in known.claims.items()],
                        known.slots,
                        known.other,
                        not known.accepting,
                    )
            self.tick()

    @often(3, thorough=draw.booleans())
    def repair(self, thorough):
        """Look for what somebody spoiled: nobody did, so nothing is found, and nothing changes."""
        waiting = {job.type for job in self.reference.jobs.values() if job.state == "pending"}
        served = {type_ for worker in self.reference.workers.values() for type_ in worker.types if worker.slots}
        types = sorted(map(encode, waiting | served))
        names = [*self.reference.jobs, *self.reference.workers][-9:] if thorough else []
        from_types = 1_000_000_000
        self.step("repair", [1, [], []], *names, first=0, thorough=int(thorough))
        self.step("repair", [from_types, [], []], first=1, thorough=int(thorough))
        self.step("repair", [-1, types, []], first=from_types, thorough=int(thorough))
        self.compare()

    @often(2)
    def the_memory_is_full_at_the_next_call(self):
        self.full_next = True

    def see_all_end(self):
        self.full_next = self.is_full = self.goes_on = False
        for worker in sorted(self.reference.workers):
            self._leave(worker)
        for list_, waiting in self.reference.lists.items():
            if waiting:
                self.call("UNLINK", list_, reply=1)
                waiting.clear()
        scheduled = [job.id for job in self.reference.jobs.values() if job.state == "scheduled"]
        for type_ in sorted({job.type for job in self.reference.jobs.values()}):
            for first in range(0, max(1, len(scheduled)), MOST_PURGED):
                self._purge(type_, scheduled[first : first + MOST_PURGED])
        self.told_at_us |= dict.fromkeys(self.reference.untold, self.now_us)
        ids = list(self.reference.jobs)
        self.step("told", self.reference.told(ids), *ids, how="told", app="")
        self.step("drop", self.reference.drop(ids), *ids)
        self.pass_time(64 * SECOND_US)
        self.compare()


def _as_found(ending):
    """Return what the script replies of an ending, or of none."""
    if ending is None:
        return []
    job_id, how, type_, task_id, name, deliveries, since_us, for_anyone, message = ending
    return [job_id, how, encode(type_), encode(task_id), name, str(deliveries), str(since_us), for_anyone, message]


def test_the_server_does_what_the_reference_does(redis_client):
    tally = Counter()
    print(f"\nSEED={SEED}")
    with Wire(redis_client) as wire:
        run(lambda: Conformance(wire, tally), steps=STEPS, steps_in_a_run=STEPS_IN_A_RUN, seed=SEED, shrink=SHRINK)
    print(STEPS, "steps:", dict(tally))
