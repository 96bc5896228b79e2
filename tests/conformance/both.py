"""Call each function on both sides, and compare the replies of the reference and the script."""

import zlib
from itertools import count

from celery_affinity.schema import bounds, job_record
from celery_affinity.schema.constants import IS_FULL, KEYED_COUNTS_AS, MAX_FORGOTTEN, MAX_PURGED
from celery_affinity.schema.job_record import NewJob, has_key, is_merged, key_suffix, suffix_of
from celery_affinity.schema.rules_codec import HINTED
from celery_affinity.schema.values import encode_part
from tests.conformance.reference import recurring
from tests.conformance.reference.replies import NONE

from .mirror import KEYS, payload, profile
from .side_by_side import REFUSED, Named, SideBySide
from .vocabulary import (
    BURST,
    GONE,
    HINTS,
    MERGES,
    NAMES,
    PATIENT,
    RULES,
    RULES_OF_MANY,
    RULES_OF_TENANT,
    STOPS,
    WORKERS,
)
from .walk import Moves

moves = Moves()
often = moves.often


def message_of(job_id):
    """Return the message of a job. Two messages of jobs "c..." exceed the byte limit of an invocation."""
    return f"message of {job_id}\n\\u00e9{'.' * (1_500 if job_id.startswith(('c', 'pc')) else 0)}"


def rules_of(job_id):
    """Return the rules of a job, always the same for an id. Few merging calls have the same rules as others."""
    number = zlib.crc32(job_id.encode())
    ways = PATIENT if job_id.startswith("p") else MERGES
    merge = [ways[number % len(ways)]] if is_merged(job_id) else []
    of_mark = {"": ("",), "!": RULES, "&": RULES_OF_MANY, "$": RULES_OF_TENANT}[key_suffix(job_id)]
    of_key = [of_mark[number % (min(3, len(of_mark)) if merge else len(of_mark))]] if has_key(job_id) else []
    hint = [f"near={HINTS[number % len(HINTS)]}"] if HINTED in suffix_of(job_id) else []
    return " ".join(merge + hint + of_key)


def task_of(job_id):
    if is_merged(job_id) and zlib.crc32(job_id.encode()) // 3 % 2 and not job_id.startswith("e"):
        return f"task of {job_id} alone"  # a call whose task already has another job is a retry
    # Jobs that a test run ends together belong to one task, and some other jobs do, too.
    return f"task of {job_id[:1]} {zlib.crc32(job_id.encode()) % (1 if job_id.startswith('e') else 3)}"


#: Words of due times; most jobs have none.
DUE = ["", "", "", "", "", "w2000000", "w400000000 s3000000", "d5000000", "w60000000 d-1 s0", "s250000"]


def job_of(job_id, type_, on_demand, priority, delay_us, expires_us=None, stamps=(), task_id=None):
    """Return a job in two forms: the reference's and the scripts'. *task_id*: a changed task id."""
    rules, message = rules_of(job_id), message_of(job_id)
    given = NewJob(
        job_id,
        type_,
        message,
        on_demand=on_demand,
        priority=priority,
        delay_us=delay_us,
        task_id=task_of(job_id) if task_id is None else task_id,
        task_name=("pdf.render", "t1", "t2")[zlib.crc32(job_id.encode()) // 7 % 3],
        expires_us=expires_us,
        stamps=stamps,
        rules=rules,
        due=DUE[zlib.crc32(job_id.encode()) // 21 % len(DUE)],
    )
    return given, dict(zip(job_record.FIELDS, given.arguments, strict=True))


def as_found(ending):
    """Return the script's reply for an ending, or for no ending."""
    if ending is None:
        return []
    job_id, how, type_, task_id, name, deliveries, since_us, for_anyone, message = ending
    return [
        job_id,
        how,
        encode_part(type_),
        encode_part(task_id),
        name,
        str(deliveries),
        str(since_us),
        for_anyone,
        message,
    ]


def in_order(arguments):
    return [arguments[name] for name in job_record.FIELDS]


class Both(SideBySide):
    """The server functions, and the arguments that a move draws for them."""

    def __init__(self, wire, tally):
        super().__init__(wire, tally)
        self.job_numbers, self.sequences, self.pages = count(), count(), count(1)
        self.released = self.counted = None
        self.has_bursts = False

    def pick_worker(self, index):
        live = sorted(self.reference.workers)
        return live[index % len(live)] if live and index < GONE else WORKERS[index % len(WORKERS)]

    def pick_claims(self, some_indexes):
        """Return a worker and claims: usually its own, sometimes a stale claim or a claim of another worker."""
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

    def pick_dead(self, some_indexes):
        """Return ids of dead letters, sometimes with another job's id, or an unknown id."""
        dead = [job.id for job in self.reference.jobs.values() if job.state == "dead"]
        others = [*self.reference.jobs, "no-job"]
        picks = [dead if dead and index < GONE else others for index in some_indexes]
        return [choice[index % len(choice)] for choice, index in zip(picks, some_indexes, strict=True)]

    def _publish(self, job_id, *job):
        return self._publish_together([(job_id, *job)])

    def _publish_together(self, jobs, spoilt=(), bounded=None):
        """Publish *jobs* in one invocation. *spoilt*: (index of a job, field, invalid value).

        *bounded*: bounds of some types.
        """
        given, arguments = map(list, zip(*(job_of(*job) for job in jobs), strict=True))
        for nth, field, value in spoilt:
            arguments[nth][field] = value
            given[nth] = job_record.first_invalid_field(in_order(arguments[nth]))
        rest = [value for each in arguments for value in in_order(each)]
        if self.full_next:
            self.step("publish", REFUSED, *rest)
            return NONE
        if bounded:
            rest.append(bounds.bound_words(bounded))
        first, *further = self.reference.publish(given, now_us=self.now_us, bounded=bounded)
        if first.state == IS_FULL:
            words = f"{encode_part(first.refused)} {len(self.reference.pending({first.refused}))}"
            words = f"{words} {bounded[first.refused].most}"
            self.step("publish", [IS_FULL, "", words] + [IS_FULL, words] * len(further), *rest)
            return NONE
        pairs = (value for each in further for value in (each.state, each.refused or each.served))
        reply = [first.state, Named(first.unfilled), first.refused or first.served, *pairs]
        self.step("publish", reply, *rest)
        self.owed |= first.unfilled  # a move may publish several times before it compares
        return first.unfilled

    def _join(self, worker, given, slots, other, given_settings, app="shop", priority=0):
        reply = self.reference.join(
            worker,
            name=NAMES[worker],
            types=given,
            slots=slots,
            other=other,
            app=app,
            stops=STOPS.get(worker, ""),
            settings=given_settings,
            now_us=self.now_us,
            priority=priority,
        )
        self.step(
            "join",
            [Named(reply.unfilled), reply.namesake or "", reply.replaced, reply.void_up_to, reply.now_us],
            *(part for pair in given_settings.items() for part in pair),
            worker=worker,
            name=encode_part(NAMES[worker]),
            slots_in_all=slots,
            other=other,
            profile=profile(given),
            types=" ".join(sorted(map(encode_part, given))),
            app=encode_part(app),
            stops=STOPS.get(worker, ""),
            priority=priority,
        )
        self.compare(reply.unfilled)

    def _sync(self, worker, held, slots, other, draining):
        reply = self.reference.sync(worker, held, slots=slots, other=other, draining=draining, now_us=self.now_us)
        self.step(
            "sync",
            [
                reply.known,
                reply.ticker,
                Named(reply.unfilled),
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
        self.compare(reply.unfilled)

    def _count(self, worker, number, sums, runs=()):
        reply = self.reference.add_metrics(worker, number, sums, runs, now_us=self.now_us)
        lines, words = "\n".join(each.line for each in runs), (word for each in sums for word in each.words)
        self.step("add_metrics", reply, *words, worker=worker, number=number, runs=lines)
        self.compare()

    def _heartbeat(self, worker, loop_runs):
        reply = self.reference.heartbeat(worker, loop_runs=loop_runs, now_us=self.now_us)
        self.step(
            "heartbeat", [reply.known, reply.again, Named(reply.unfilled)], worker=worker, loop_runs=int(loop_runs)
        )
        self.compare(reply.unfilled)

    def _recover(self, worker):
        reply = self.reference.recover(worker, now_us=self.now_us)
        self.step("recover", [reply.again, reply.recovered, Named(reply.unfilled)], worker=worker)
        self.compare(reply.unfilled)

    def _leave(self, worker):
        unfilled, unfinished, returned = self.reference.leave(worker, now_us=self.now_us)
        self.step("leave", [Named(unfilled), unfinished, returned], worker=worker)
        self.compare(unfilled)
        if unfinished:
            self._leave(worker)

    def _read(self, worker):
        inbox = self.reference.workers[worker].inbox if worker in self.reference.workers else []
        self.call("RPOP", KEYS.key("inbox", worker), reply=payload(inbox.pop(0)) if inbox else None)

    def _ack(self, worker, acks):
        acked = self.reference.ack(worker, acks)
        self.step("ack", acked, *(part for pair in acks for part in pair), worker=worker)
        self.compare()

    def _release(self, worker, sequence, ends, inline, may_hold):
        reply = self.reference.release(worker, sequence, ends, inline=inline, may_hold=may_hold, now_us=self.now_us)
        self.step(
            "release",
            [Named(reply.unfilled), *(part for each in reply.deliveries for part in payload(each).split("\n", 1))],
            *(part for end in ends for part in end),
            worker=worker,
            sequence=sequence,
            caller=int(inline),
            may_hold=may_hold.in_words,
        )
        self.compare(reply.unfilled)

    def _requeue(self, worker, claims, counted):
        unfilled, returned = self.reference.requeue(worker, claims, counted=counted, now_us=self.now_us)
        rest = [part for pair in claims for part in pair]
        self.step("requeue", [Named(unfilled), returned], *rest, worker=worker, counted=int(counted))
        self.compare(unfilled)

    def _revoke(self, task_ids, after=0):
        ended, left, last, others = self.reference.revoke(task_ids, after=after, now_us=self.now_us)
        self.step(
            "revoke",
            [ended, left, last, [*map(encode_part, others)]],
            *map(encode_part, task_ids),
            by="task",
            keep_s=60,
            after=after,
        )
        self.compare()
        if left:
            self._revoke(task_ids[-left:], last)

    def _revoke_stamped(self, stamps):
        ended, left, _, others = self.reference.revoke_stamped(stamps, now_us=self.now_us)
        self.step("revoke", [ended, left, 0, others], *stamps, by="stamp", keep_s=60, after=0)
        self.compare()

    def _purge(self, type_, scheduled=()):
        """Purge completely. The order of deletion and the number per invocation are not defined."""
        counted = sum(self._purged_as(job) for job in self.reference.pending({type_}))
        while self.reference.purge(type_, scheduled, now_us=self.now_us).again:
            pass
        for _ in range(counted // MAX_PURGED + 1):
            self.step("purge", ..., *scheduled, type=encode_part(type_))
        self.step("purge", [0, 0], type=encode_part(type_))
        self.may_forget = counted >= MAX_PURGED
        if counted >= MAX_PURGED:  # the keys left to the next tick depend on which jobs left together
            self.tick()
        else:
            self.compare()

    def _purged_as(self, job):
        """Return the number of jobs that the server counts a purged job as."""
        own = KEYED_COUNTS_AS if has_key(job.id) else 1  # an unreadable job has the suffix of a key, but no rules
        calls = min(len(job.callers), MAX_FORGOTTEN)
        return own + KEYED_COUNTS_AS * calls + len(recurring.names_of(self.reference, job))

    def _configure(self, changes):
        reply = self.reference.configure(changes, now_us=self.now_us)
        wanted = [reply.revision, Named(reply.unfilled)]
        self.step("configure", wanted, *(part for pair in changes.items() for part in pair))
        self.compare(reply.unfilled)

    def has_room(self):
        """Return True if one purge still deletes everything after a burst; what a purge leaves is undefined."""
        return self.has_bursts and len(self.reference.jobs) + 2 * BURST < MAX_PURGED
