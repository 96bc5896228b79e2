"""The numbers that the Lua functions share with the Python that specifies, calls or explains them.

Lua has them in the table ``protocol``, which is generated.

The reasons for which a job becomes a dead letter: metrics, filters, `explain`, arrows and the docs read them.

Conclusions from the interval in which a worker sends heartbeats. Times and intervals of a call are in one unit.
"""

from typing import NamedTuple

# Longer than 300 lines: one table, each number with its quantity and unit.

# -- how much one call of an arrow does

#: Largest number of jobs that one call moves, so that no arrow runs for more than 5 ms: a move takes about 0.1 ms.
MOST_MOVES = 10

#: Bytes of messages after which a call moves no more, since a move takes about 2 ms for each MB. The message that
#: exceeds the number is moved still.
MOST_BYTES = 1_000_000

#: Types with waiting jobs among which one call chooses that looks at all free slots; a release, which has one slot to
#: fill, looks at all types of its worker.
MOST_CHOSEN_FROM = 100

#: Types that are filled at once when a pause of all types ends; of the others the next sync of each worker does.
MOST_RESUMED = 100

#: Types that one call fills because a rule let their jobs go on; it names the others as `unfilled`. Also types that one
#: call opens, or closes since as many of their jobs run, after their limits have changed.
MOST_FILLED = 50

#: Workers whose claims one call counts for a new limit of a type, and the number of these claims.
MOST_COUNTED = 20
MOST_CLAIMS = 100

#: Workers into whose inboxes one call puts the sign of a pause.
MOST_SIGNED = 100

#: Keys of rules that one call renews at most, after limits have changed.
MOST_KEYS = 50

#: Largest number of tenants whose starts one call sets right; then it takes the job of the smallest start there is.
MOST_TURNS = 50

#: Sub-lanes of keys of which another job stands in its lane after one call, since a key has room; from twice as many
#: that job goes, since a key has none.
MOST_OPENED = 50

#: Sub-lanes of a tenant's key whose jobs are counted, as each job comes, so that none of few is kept back.
MOST_SUBLANES = 4

#: Jobs of each kind, pending and scheduled, that one call of `purge` deletes at most; and as how many jobs one counts
#: that has a key, or a call of a batch.
MOST_PURGED = 50
KEYED_COUNTS_AS = 4

#: Largest number of values that an arrow passes to one command: Lua's `unpack` fails near 8,000.
MOST_UNPACKED = 1_000

#: Largest number of profiles with a free slot that are compared for one job.
MOST_COMPARED = 100

#: Largest number of pending jobs of a type whose calls `repair` counts again.
MOST_RECOUNTED = 500

#: Interval, µs, at which dispatchers call `repair`: of very many jobs and keys, each such call looks at others.
REPAIRED_EVERY_US = 60_000_000

#: Bytes of the longest argument in which `repair` sees a name: a longer one is a message.
LONGEST_NAME = 1_000

# -- stops of running jobs, for tenants that have less than their minimum

#: Tenants below their minimum for which one tick has jobs stopped; and of how many lanes, those with the oldest jobs,
#: it looks at how many such jobs, to find these tenants.
MOST_PREEMPTORS = 10
MOST_FIRST_LANES = 50
MOST_FIRST_JOBS = 100

#: Tenants above their minimum whose jobs one tick may stop, those with the most jobs that may be stopped; how many
#: tenants it looks at to find these; and how many jobs of each, those that were claimed last.
MOST_GIVING = 10
MOST_GIVING_LOOKED_AT = 50
MOST_VICTIMS = 50

#: Claims that a tick looks at to learn which of them are ahead of the slots of their workers.
MOST_AHEAD_LOOKED_AT = 500

#: Stops that are under way together: a tick looks at each of them.
MOST_VACATING = 200

#: Time, µs, beyond the grace after which another job is stopped instead of one whose worker has not answered.
ANSWERED_WITHIN_US = 5_000_000

#: How a job ended that was stopped so. The time for which it had its slot follows, µs.
PREEMPTED = "preempted"

#: First letters of the last word of what a worker reads of a job that was stopped before; then how often.
WAS_PREEMPTED = "preempted:"

#: First letters of a word of what a worker reads of a job that its task requeued before; then how often.
WAS_REQUEUED = "requeued:"

#: Longest time, µs, that a stopped job is believed to have had its slot: 31 years.
LONGEST_RUN_US = 10**15

# -- what a message may say of its job

#: Highest priority; 0 is the lowest and the default.
MAX_PRIORITY = 10

#: Number of characters of the longest job id.
LONGEST_ID = 255

#: Number of characters of the longest whole number, enough for times of 31,000 years, µs.
LONGEST_NUMBER = 18

#: Number of characters of the longest time for which a call waits for others, µs: sums with it are exact in Lua.
LONGEST_PATIENCE = 15

#: Characters of the longest key of a rule, percent-encoded.
LONGEST_KEY = 255

#: What the keys of rates, and of tenants, begin with, encoded. No exclusive key does, so they never meet.
RATE_PREFIX = "rate%3A"
TENANT_PREFIX = "tenant%3A"

#: What a job states of the key of its tenant: settings alone say how many jobs may hold that, and who goes first.
BY_SETTINGS = "settings"

#: Last word of the rules of a job with a tenant that may be stopped for the job of another one.
PREEMPTIBLE = "preemptible=1"

#: Hints that a worker holds (`locality`); holders of a hint that are looked at for one job, those who took it up last;
#: and those of them with a free slot that are compared.
MOST_HINTS = 10
MOST_HOLDERS = 30
MOST_FREE_HOLDERS = 10

#: Bytes of heads of hints that one call compares anew at most: it leaves others, whose jobs get no bonus, to the next.
MOST_NEAR_BYTES = 20_000

#: Calls of one run, and bytes of their messages, at most, if a task says nothing of them; and what `rules` say of these
#: bounds. A job's row, of which there may be very many, leaves that out.
USUAL_MOST = 1_000
USUAL_MOST_BYTES = 1_000_000
USUAL_BOUNDS = f" most={USUAL_MOST} bytes={USUAL_MOST_BYTES}"

#: Largest number of stamps of one message, and of bytes that they take as `revokes.stamp` writes them: a waiting job
#: can be found by each stamp, which costs a few commands when the job comes and when it ends.
MOST_STAMPS = 100
MOST_STAMP_BYTES = 20_000

#: Words of field ``!`` of key ``heads``: there are pauses or limits of types; there are reserves, and maybe those too.
#: Where neither is, the field may say how workers are preferred (``lua/matching/placement.lua``).
HAS_TYPE_RULES = "rules"
HAS_RESERVES = "reserves"

#: Signs in an inbox, each the first word of a line that is no job: the worker is to tick, to give back jobs that it
#: holds ahead, to give back what is paused, to stop the task of a job.
TICK_SIGN, BACK_SIGN, PAUSED_SIGN, PREEMPT_SIGN = "tick", "back", "paused", "preempt"

#: What the row of a worker says in place of the names of tasks if its pool can stop any task by force.
FORCE = "force"

# -- what `publish` and `ingest` reply of a job

#: State of a message that is not the next one in the list that it is to be taken from. Nothing has changed.
IS_NOT_NEXT = -1

#: State of a job whose id was known already. Nothing has changed.
IS_KNOWN = 0

#: State of a job that is pending, or was placed.
IS_PENDING = 1

#: State of a job that waits for its time.
IS_SCHEDULED = 2

#: State of a job that has ended: its task was revoked before, or it has expired.
HAS_ENDED = 3

#: State of a message that is a dead letter, since nobody can read it.
IS_UNREADABLE = 4

#: State of a job of which a field is not accepted. Nothing has changed.
IS_REFUSED = 5

#: State of a call that joined others which wait: they are one run.
IS_MERGED = 6

#: State of all jobs of a call that was refused, since as many jobs wait as their type may have. Nothing has changed.
IS_FULL = 7

#: Names of counters, before a type: jobs that were refused so, and jobs that were dropped for the same reason.
REFUSED_OF = "refused "
DROPPED_OF = "dropped "

#: First word of the reason that is kept of a job that was dropped, and how its end is announced.
DROPPED = "dropped"

#: First jobs of each lane among which the oldest one is found that may be dropped.
MOST_DROPPED_FROM = 10

# -- the fleet

#: Largest number of types that one worker serves, since the cost of placing a job grows with them. A tick takes out no
#: further dead worker once those that it took out served so many types.
MOST_TYPES = 1_000

#: Number of workers that tick for the fleet: those that joined first.
TICKERS = 3

#: Longest pause, µs, between two ticks of a worker: `publish` wakes one for a job that is due sooner. The pause does
#: not divide the 5 s between two syncs: a tick and a sync at one moment would need a connection each.
TICK_US = 1_400_000

#: Age of the last tick, µs, from which on every worker ticks, not only the tickers.
TICKED_LATELY_US = 2_000_000

#: Age of the last tick, µs, from which on nobody was there to hear heartbeats: every worker gets a fresh timeout.
SILENCE_COUNTS_US = 3_000_000

#: Time, µs, written as the last heartbeat of a worker whose jobs are being recovered: no later one stops the recovery.
GIVEN_UP_US = 0

#: Time, µs, at which something is due that the next tick is to do, even if the clock is set back before that tick.
AT_ONCE_US = 0

# -- how a job ended

#: Largest number of bytes that are kept of a worker's words about an error.
MOST_WHY_BYTES = 1_200

#: Number of durations that the moving average of a type goes by: each new one counts for an eighth.
AVERAGED_OVER = 8

#: Number of durations that the pace of a worker goes by, for each type.
PACE_AVERAGED_OVER = 32

#: Longest time, µs, in the smallest bucket of times: 1/256 s. Each further bucket has times twice as long.
SMALLEST_BUCKET_US = 3906.25

#: Number of the largest bucket but one, whose longest time is 12 days: bucket 0 is the smallest.
LARGEST_BUCKET = 28

#: Fields of metrics that one call of `count` adds to: each takes about 3 µs.
MOST_METRICS = 300

#: Claims that one call of `record` takes, and such calls that the server keeps of one recording, at most: about 100 MB.
MOST_RECORDED = 200
MOST_PAGES = 5_000

#: Seconds for which a recording is known that nobody has fetched: a day.
RECORDING_KEPT_S = 86_400

#: Seconds for which the metrics of a type are known that no live worker serves.
METRICS_KEPT_S = 86_400

#: Calls of the largest run of merged calls that has a count of its own: runs are counted by powers of two.
LARGEST_BATCH_COUNTED = 65_536

#: Name of such a count among the counters, before the number of calls, or before "more".
BATCH_SIZE = "batch_size "

#: Jobs that one tick takes out of the index of those that have ended.
MOST_TRIMMED = 100

#: Seconds for which a job that has ended is known at least: a repeated publish changes nothing. ``affinity_keep``.
ENDED_KEPT_S = 60

#: Seconds for which task ids and stamps stay revoked: as long as Celery's workers remember them (``REVOKE_EXPIRES``).
REVOKED_KEPT_S = 10_800

#: Seconds for which the settings in an app.conf are known after the last heartbeat of its last worker: a month.
CONF_KEPT_S = 2_592_000

# -- ends that somebody has to tell

#: Largest number of ends that one call of `announce` reads, to find one that is to be told.
MOST_ENDS_LOOKED_AT = 300

#: Bytes of the longest message that `announce` replies with; the caller reads a longer one by itself.
LONGEST_ANNOUNCED = 65_536

#: Calls of a batch that one call of `callers` looks at, and that one call of `shared` is told of.
MOST_SHARED = 100

#: Calls of a batch that are deleted together with it. Others are deleted MOST_SHARED at a time, by those who tell ends.
MOST_FORGOTTEN = 10

#: Longest pause, µs, before an end is announced again that nobody has told.
LONGEST_PAUSE_US = 300_000_000

#: Finding of a repair that corrupt data stopped in one place. The next repair may get further.
UNFINISHED = "more, perhaps: it shows once the rest is repaired"

#: Longest period, µs, of a rate limit of a key.
LONGEST_RATE_PERIOD_US = 3_600_000_000

#: Time, µs, for which an app that does not know a task leaves its end to others: if none has tried to tell it, and if
#: one has.
OTHERS_HAVE_US = 15_000_000
OTHERS_WHO_TRY_HAVE_US = 3_600_000_000

# -- recurring calls

#: Shortest interval of a recurring call, µs: ticks are up to `TICK_US` apart.
LEAST_STALE_US = 1_000_000

#: Bytes of the longest signature of a recurring call, which is read whenever the call is due.
MOST_SIGNATURE = 100_000

#: Recurring calls that one call of `due` reads, to find one that is to be made.
MOST_DUE_LOOKED_AT = 100

#: Recurring calls whose times one tick compares with a clock that was set back.
MOST_RECHECKED = 200

#: Recurring calls that are alike in what they match: a call that matches resets them all.
MOST_ALIKE = 20

# -- what somebody else deleted or overwrote

#: Texts of one kind whose meanings the functions keep from call to call: types, names of tasks, lanes.
MOST_KEPT = 1000

#: Names of keys of one kind that the functions keep: as many as there are types, or workers, in a large fleet.
MOST_NAMES = 10_000

#: Fleets on one server, and types of each, of which the functions keep which head goes first: about 1 KB for a type.
MOST_FLEETS = 20
MOST_COMPARISONS = 10_000

#: Prefix of the field that names a setting whose damaged value a repair has replaced by that of app.conf, at what time.
SETTING_RESET = "reset:"

#: Largest number of findings that are kept for a dispatcher's log.
MOST_SPOILED = 100

#: Bytes of a finding: it may name a member or a field of any length.
MOST_SPOILED_BYTES = 500

#: Seconds for which a key that held what it must not is kept, out of the way: a week.
SET_ASIDE_KEPT_S = 604_800

#: name -> number or text, of all above.
NUMBERS: dict[str, float | str] = {name: value for name, value in globals().items() if name.isupper()}


class Reason(NamedTuple):
    """One reason. *what_happened*: a sentence of the docs, without its end.

    *if_untold*: what is said of a letter of which no worker said more; {deliveries} stands for the number of times
    that the job came back. "": a worker always says more. *is_run*: the worker ran the job to an end, and counts it
    with the time of its slot. *is_announced*: the worker cannot tell the caller, so another process does.
    """

    what_happened: str
    if_untold: str = ""
    is_run: bool = False
    is_announced: bool = False


#: Reason, as the row of a job has it -> what it means.
REASONS: dict[str, Reason] = {
    "rejected": Reason(
        "the task, or its worker, rejected the message without requeueing it",
        "the task rejected it, and gave no reason",
    ),
    "failed": Reason(
        "the task failed for good, and `affinity_keep_failed` keeps its message",
        is_run=True,
    ),
    "max_deliveries": Reason(
        "the job was delivered `affinity_max_deliveries` times: each time its worker or its pool process died, or a "
        "hard time limit ended its run without an ack",
        "its runs ended without an ack {deliveries} times: its worker or its pool process died, or a hard time limit "
        "ended the run (affinity_max_deliveries)",
        is_announced=True,
    ),
    "max_requeues": Reason(
        "the task requeued the job (`Reject(requeue=True)`) more often than `affinity_max_requeues` allows",
        "its task requeued it more often than affinity_max_requeues allows",
        is_announced=True,
    ),
    "lost": Reason(
        "the worker died after it had acked the message at the start of the task: the task may have run in part",
        "its worker died after it had acked the message: the job may have done its work",
        is_announced=True,
    ),
    "unreadable": Reason(
        "the message cannot be read: a stock producer, or another program, wrote or damaged it",
        "nobody can read its message, or somebody deleted what was known of it",
    ),
}


#: Silence, in intervals of a heartbeat, after which a worker is late: two missed heartbeats, and half an interval for
#: the second to arrive.
_LATE = 2.5

#: Time, in intervals of a heartbeat, until a worker has said what happened: each one says which jobs have started.
_SAID = 2

#: Shortest worker timeout, in intervals of a heartbeat: one late heartbeat is no death.
_SHORTEST_TIMEOUT = 2


def is_heartbeat_late(silence: float, interval: float) -> bool:
    """Return whether a worker with a heartbeat in each *interval* should have been heard in such a *silence*."""
    return silence > _LATE * interval


def is_recently_reported(age: float, interval: float) -> bool:
    """Return whether a worker has had the time to say what happened *age* ago."""
    return age > _SAID * interval


def is_timeout_too_short(timeout: float, interval: float) -> bool:
    """Return whether one late heartbeat looks like death, since *timeout* is too short for *interval*."""
    return timeout < _SHORTEST_TIMEOUT * interval
