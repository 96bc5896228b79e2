"""Constants shared by the Lua server functions and the Python code that specifies, calls or explains them.

The Lua table ``protocol`` is generated from `NUMBERS`. `REASONS` lists the reasons for which a job becomes a dead
letter; metrics, filters, `explain`, server functions and the docs read it. The functions at the end draw conclusions
from the heartbeat interval; the times passed to one call must have the same unit.
"""

from typing import NamedTuple

# -- work per invocation of a server function

#: Maximum number of jobs moved by one invocation. A move takes about 0.1 ms, so no function runs longer than 5 ms.
MAX_MOVES = 10
#: Limit on the messages moved by one invocation, in bytes: a move takes about 2 ms per MB. The message that exceeds
#: the limit is still moved.
MAX_BYTES = 1_000_000
#: Maximum number of types with waiting jobs among which an invocation chooses if it examines all free slots. A release
#: fills only one slot and examines all types of its worker.
MAX_CHOSEN_FROM = 100
#: Limit on the heads of types that one invocation compares, in bytes, and on its comparisons of types, once per move.
#: Beyond it, a fill chooses among the types whose heads it or an earlier invocation has compared.
MAX_COMPARED_BYTES = 30_000
MAX_CHOICES = 3_000
#: Maximum number of types that are filled immediately when a pause of all types ends. The next sync of each worker
#: fills the others.
MAX_RESUMED = 100
#: Maximum number of types that one invocation fills because a rule unblocked their jobs; it returns the others as
#: `unfilled`. Also the maximum number of types that one invocation opens or closes after their limits have changed.
MAX_FILLED = 50
#: Maximum number of workers whose claims one invocation counts for a type's new limit, and of these claims.
MAX_COUNTED = 20
MAX_CLAIMS = 100
#: Maximum number of workers to whose inboxes one invocation adds the control message of a pause.
MAX_SIGNED = 100
#: Maximum number of rule keys that one invocation re-evaluates after limits have changed.
MAX_KEYS = 50
#: Maximum number of invalid members of key `turns` that one choice removes.
MAX_TURNS = 50
#: Maximum number of waiting jobs that one invocation lists by tenant after fair shares began.
MAX_LISTED = 50
#: Time in seconds for which a tenant's use of slots is remembered after its last change.
SHARES_KEPT_S = 3600
#: Maximum number of sub-lanes in which one invocation admits another job because a key has capacity. In up to twice as
#: many, it revokes admissions because a key is full.
MAX_OPENED = 50
#: Number of sub-lanes of a tenant's key up to which arriving jobs are counted, so that a few jobs are never blocked.
MAX_SUBLANES = 4
#: Maximum number of jobs per kind (pending, scheduled) that one invocation of `purge` deletes. A job with a key, and a
#: call of a batch, count as KEYED_COUNTS_AS jobs. Deleting a job that no client has touched for minutes takes about
#: 0.25 ms.
MAX_PURGED = 20
#: Maximum number of jobs, and of names, that one invocation of `revoke` processes. A job takes about 0.06 ms.
MAX_REVOKED = 20
KEYED_COUNTS_AS = 4
#: Maximum number of arguments per Redis command: Lua's `unpack` fails near 8,000.
MAX_UNPACKED = 1_000
#: Maximum number of profiles with a free slot that are compared for one job.
MAX_COMPARED = 100
#: Maximum number of pending jobs of a type whose calls `repair` counts again.
MAX_RECOUNTED = 500
#: Interval in µs at which dispatchers call `repair`. If there are too many jobs and keys, each invocation checks
#: others.
REPAIRED_EVERY_US = 60_000_000
#: Maximum length of an argument that `repair` treats as a name in bytes. A longer argument is a message.
MAX_NAME_LENGTH = 1_000

# -- preemption for tenants below their minimum

#: Maximum number of tenants below their minimum for which one tick preempts jobs. Then the limits on its search for
#: these tenants: minimum lanes (the lanes with the oldest jobs first), and jobs in these lanes.
MAX_PREEMPTORS = 10
MAX_FIRST_LANES = 50
MAX_FIRST_JOBS = 100
#: Maximum number of tenants above their minimum whose jobs one tick may preempt; tenants with more preemptible jobs
#: first. Then the number of tenants examined to find them, and of jobs examined per tenant, the most recently claimed
#: first.
MAX_GIVING = 10
MAX_GIVING_LOOKED_AT = 50
MAX_VICTIMS = 50
#: Maximum number of claims that a tick examines to determine which of them are prefetched.
MAX_AHEAD_LOOKED_AT = 500
#: Maximum number of evictions in progress. A tick examines each of them.
MAX_STOP_ORDERS = 200
#: Time in µs after the grace period. If the victim's worker has not answered by then, another job is preempted.
ANSWERED_WITHIN_US = 5_000_000
#: How a preempted job ended. The time for which the job had a slot follows, in µs.
PREEMPTED = "preempted"
#: Prefix of a claim payload's last token, if the job was preempted before. The number of preemptions follows.
WAS_PREEMPTED = "preempted:"
#: Prefix of a token in a claim payload, if the task requeued the job before. The number of requeues follows.
WAS_REQUEUED = "requeued:"
#: Maximum slot-time in µs that is accepted for a preempted job: 31 years.
MAX_RUN_US = 10**15

# -- values accepted in a message

#: Highest priority. The lowest is 0, the default.
MAX_PRIORITY = 10
#: Maximum length of a job id in characters.
MAX_ID_LENGTH = 255
#: Maximum length of an integer in characters, enough for times of 31,000 years in µs.
MAX_NUMBER_LENGTH = 18
#: Maximum number of digits of a time in µs, and of a size in millionths, in a job's field "due".
MAX_DUE_DIGITS = 17
#: Prefix of a token in a claim payload, if the job has a due time. The time in µs since the epoch follows.
IS_DUE = "due:"
#: Maximum length of a merge window in µs in characters. Sums with it are exact in Lua.
MAX_PATIENCE_LENGTH = 15
#: Maximum length of a percent-encoded rule key in characters.
MAX_KEY_LENGTH = 255
#: Encoded key prefixes of rates and tenants. No exclusive key has such a prefix, so they cannot collide.
RATE_PREFIX = "rate%3A"
TENANT_PREFIX = "tenant%3A"
#: Value that a job states for its tenant's key: only settings define the key's limit and the order of its jobs.
BY_SETTINGS = "settings"
#: Last token of a job's rules, if the job may be preempted for another tenant's job.
PREEMPTIBLE = "preemptible=1"
#: Maximum number of hints that a worker holds (`locality`), of holders examined for one job (the most recent first),
#: and of holders with a free slot that are compared.
MAX_HINTS = 10
MAX_HOLDERS = 30
MAX_FREE_HOLDERS = 10
#: Limit on the hint-lane heads that one invocation compares, in bytes. The jobs of the other heads get no bonus
#: until the next invocation.
MAX_NEAR_BYTES = 20_000
#: Limits of one run if the task sets none: calls, and bytes in their messages; and the text of these limits in `rules`.
#: A job hash omits that text, because there can be a large number of jobs.
USUAL_MAX_CALLS = 1_000
USUAL_MAX_BYTES = 1_000_000
USUAL_BOUNDS = f" most={USUAL_MAX_CALLS} bytes={USUAL_MAX_BYTES}"
#: Maximum number of stamps per message, and their maximum size in bytes in the format of `message.encode_stamp`. A
#: waiting job is indexed by each stamp, which costs a few commands when the job is published and when it ends.
MAX_STAMPS = 100
MAX_STAMP_BYTES = 20_000
#: Values of field ``!`` of key ``heads``: types have pauses or limits; there are reserves, and possibly pauses or
#: limits too. Otherwise the field can name the placement policy (``lua/matching/slot_choice.lua``).
HAS_TYPE_RULES = "rules"
HAS_RESERVES = "reserves"
#: End of that value if tenants have fair shares.
HAS_SHARES = "+shares"
#: Part of it before that, followed by target wait and stretch, unless both have their defaults.
HAS_DUE_SETTINGS = "+due="
#: Control messages in an inbox: the first token of a line that is not a job. They make the worker run a tick, return
#: prefetched jobs, return paused jobs, or stop the task of a job.
TICK_SIGN, BACK_SIGN, PAUSED_SIGN, PREEMPT_SIGN = "tick", "back", "paused", "preempt"
#: Value in a worker's hash instead of task names, if the worker's pool can stop any task by force.
FORCE = "force"

# -- job states in replies of `publish` and `ingest`

#: The message is not the next one in the list from which it should be taken. Nothing has changed.
IS_NOT_NEXT = -1
#: A job with this id already exists. Nothing has changed.
IS_KNOWN = 0
#: The job is pending or was placed.
IS_PENDING = 1
#: The job waits for its due time.
IS_SCHEDULED = 2
#: The job has ended: its task was revoked before, or the job has expired.
HAS_ENDED = 3
#: The message is unreadable and became a dead letter.
IS_UNREADABLE = 4
#: A field of the job is invalid. Nothing has changed.
IS_REFUSED = 5
#: The call joined other waiting calls; together they are one run.
IS_MERGED = 6
#: All jobs of the call were refused, because their type has its maximum number of waiting jobs. Nothing has changed.
IS_FULL = 7
#: Prefixes of counter names, before a type: jobs refused, or dropped, because of the type's bound.
REFUSED_OF = "refused "
DROPPED_OF = "dropped "
#: First word of the stored reason of a dropped job, and of how its end is reported.
DROPPED = "dropped"
#: Number of jobs at the head of each lane among which the oldest droppable job is searched.
MAX_DROPPED_FROM = 10

# -- the fleet

#: Maximum number of types that one worker serves, since the cost of placing a job grows with them. A tick stops
#: removing dead workers once the removed ones served this number of types.
MAX_TYPES = 1_000
#: Number of workers that run ticks for the fleet: the ones that joined first.
TICKERS = 3
#: Maximum interval in µs between two ticks of a worker. `publish` wakes a worker for a job that is due sooner. The
#: interval does not divide the 5 s between syncs, because a simultaneous tick and sync would need two connections.
TICK_US = 1_400_000
#: Age of the last tick in µs from which every worker runs ticks, not only the tickers.
TICKED_LATELY_US = 2_000_000
#: Age of the last tick in µs from which heartbeats may have been missed, so that every worker gets a new timeout.
SILENCE_COUNTS_US = 3_000_000
#: Time in µs that is stored as the last heartbeat of a worker whose jobs are being reclaimed. A later heartbeat does
#: not stop the reclaim.
GIVEN_UP_US = 0
#: Due time in µs of work for the next tick. It stays due even if the clock is set back before that tick.
AT_ONCE_US = 0

# -- ends of jobs

#: Maximum number of bytes stored of a worker's error text.
MAX_WHY_BYTES = 1_200
#: Number of durations in the moving average of a type: a new duration has a weight of one eighth.
AVERAGED_OVER = 8
#: Number of durations in the pace of a worker, per type.
PACE_AVERAGED_OVER = 32
#: Upper limit in µs of the smallest bucket of times: 1/256 s. The limit of each further bucket is twice as large.
SMALLEST_BUCKET_US = 3906.25
#: Number of the last bucket with an upper limit, which is 12 days. The smallest bucket has number 0.
LARGEST_BUCKET = 28
#: Maximum number of metric fields that one invocation of `count` adds to. Each takes about 3 µs.
MAX_METRICS = 300
#: Factor by which an older run counts less than the next one: 20 runs ago counts half (`policy/run_times`).
RUN_DECAY = 2 ** (-1 / 20)
#: Number of runs from which a run time is limited to MAX_TIMES_EXPECTED times the prediction. With as many decayed runs
#: whose sizes differ enough (MIN_SPREAD: the product of the mean size and the mean of 1 / size), sizes are used.
MIN_RUNS = 8
MAX_TIMES_EXPECTED = 8
MIN_SPREAD = 1.25
#: Minimum size of a run, as a share of the mean size and as a number, and the maximum size.
MIN_RELATIVE_SIZE = 0.01
MIN_SIZE = 1e-6
MAX_SIZE = 1e12
#: Maximum number of runs that are counted of a task.
MAX_COUNTED_RUNS = 10**12
#: Maximum number of tasks whose run times are learned; beyond it, the least recently used tenth is dropped. Then the
#: seconds for which they are kept without a run: 30 days.
MAX_TASKS_LEARNED = 1_000
RUN_TIMES_KEPT_S = 2_592_000
#: Maximum number of tasks whose runs one invocation adds, and of runs per task: the last ones. A run takes about 1 µs.
MAX_TASKS_ADDED = 20
MAX_RUNS_ADDED = 50
#: Maximum number of claims in one invocation of `record`, and of invocations stored per recording: about 100 MB.
MAX_RECORDED = 200
MAX_PAGES = 5_000
#: Seconds for which a recording is kept if it is not fetched: a day.
RECORDING_KEPT_S = 86_400
#: Seconds for which the metrics of a type without live workers are kept.
METRICS_KEPT_S = 86_400
#: Maximum number of calls in a run of merged calls that has a separate counter. Runs are counted by powers of two.
LARGEST_BATCH_COUNTED = 65_536
#: Prefix of such a counter's name, before the number of calls or "more".
BATCH_SIZE = "batch_size "
#: Maximum number of jobs that one tick removes from the index of ended jobs.
MAX_TRIMMED = 100
#: Minimum number of seconds for which an ended job is remembered, so that publishing it again changes nothing. See
#: ``affinity_keep``.
ENDED_KEPT_S = 60
#: Maximum length in bytes of the message that is kept with a failed job, while ``affinity_keep`` keeps the job.
MAX_KEPT_MESSAGE_BYTES = 16_384
#: Seconds for which task ids and stamps stay revoked, equal to ``REVOKE_EXPIRES`` of Celery's workers.
REVOKED_KEPT_S = 10_800
#: Seconds for which the settings of an app.conf are kept after its last worker's last heartbeat: a month.
CONF_KEPT_S = 2_592_000

#: Maximum number of requeues that are remembered, the bytes of each token of an entry, and the seconds after the last
#: one: a day. An entry takes about 150 bytes.
MAX_REQUEUES = 2_000
MAX_REQUEUE_TOKEN = 300
REQUEUES_KEPT_S = 86_400

# -- reports of ends to callers

#: Maximum number of ends that one invocation of `announce` reads to find an unreported one.
MAX_ENDS_LOOKED_AT = 300
#: Maximum length of a message in a reply of `announce` in bytes. The client reads a longer message separately.
MAX_ANNOUNCED_BYTES = 65_536
#: Maximum number of a batch's calls that one invocation of `callers` examines, and that one of `shared` receives.
MAX_SHARED = 100
#: Number of calls up to which they are deleted together with their batch. Result reporters delete further calls,
#: MAX_SHARED per invocation.
MAX_FORGOTTEN = 10
#: Maximum delay in µs before an unreported end is assigned again.
MAX_PAUSE_US = 300_000_000
#: Finding of a repair that corrupt data stopped in one place. The next repair may get further.
UNFINISHED = "more, perhaps: it shows once the rest is repaired"
#: Maximum period of a key's rate limit in µs.
MAX_RATE_PERIOD_US = 3_600_000_000
#: Time in µs for which an app that does not have a task leaves the report of its end to other apps: if none has tried
#: to report the end, and if one has.
OTHERS_HAVE_US = 15_000_000
OTHERS_WHO_TRY_HAVE_US = 3_600_000_000

# -- recurring calls

#: Minimum interval of a recurring call in µs: ticks are up to `TICK_US` apart.
LEAST_STALE_US = 1_000_000
#: Maximum length of a recurring call's signature in bytes, which is read whenever the call is due.
MAX_SIGNATURE = 100_000
#: Maximum number of recurring calls that one invocation of `due` reads to find a call that must be made.
MAX_DUE_LOOKED_AT = 100
#: Maximum number of recurring calls whose times one tick compares with a clock that was set back.
MAX_RECHECKED = 200
#: Maximum number of recurring calls with the same match rule. A matching call resets them all.
MAX_ALIKE = 20

# -- caches, and data that another client deleted or overwrote

#: Maximum number of strings per kind (types, task names, lanes) whose meaning the functions cache across invocations.
MAX_KEPT = 1000
#: Maximum number of Redis key names of one kind that the functions cache: the number of types or workers in a large
#: fleet.
MAX_NAMES = 10_000
#: Maximum number of fleets on one server, and of types per fleet, for which the functions cache which head is first:
#: about 1 KB per type.
MAX_FLEETS = 20
MAX_COMPARISONS = 10_000
#: Prefix of a field for a setting whose corrupt value was replaced by the value of app.conf. The setting's name
#: follows; the field's value is the time of that repair.
SETTING_RESET = "reset:"
#: Maximum number of findings kept for the log of a dispatcher.
MAX_SPOILED = 100
#: Maximum length of a finding in bytes, which may contain a member or a field of any length.
MAX_SPOILED_BYTES = 500
#: Seconds for which a key with corrupt content is kept in quarantine: a week.
SET_ASIDE_KEPT_S = 604_800
#: Name -> value of all constants above.
NUMBERS: dict[str, float | str] = {name: value for name, value in globals().items() if name.isupper()}


class Reason(NamedTuple):
    """A reason for which a job becomes a dead letter."""

    #: Clause for the docs, without the final period.
    what_happened: str
    #: Default error text; "{deliveries}" is replaced. Empty if the worker always supplies one.
    if_untold: str = ""
    #: True if the worker ran the job to its end, so its slot-time is recorded.
    is_run: bool = False
    #: True if another process must report the end, because the worker cannot.
    is_announced: bool = False


#: Reason, as stored in the job hash -> its meaning.
REASONS: dict[str, Reason] = {
    "rejected": Reason(
        "the task, or its worker, rejected the message without requeueing it",
        "the task rejected it without a reason",
    ),
    "failed": Reason("the task failed without a retry, and `affinity_keep_failed` keeps its message", is_run=True),
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
        "its message cannot be read, or another program deleted the job hash",
    ),
}


#: Silence in heartbeat intervals that makes a worker late: two missed heartbeats, and half an interval for the
#: second one to arrive.
_MAX_SILENCE = 2.5
#: Number of heartbeat intervals until a worker has reported an event. Every heartbeat reports the started jobs.
_REPORT_DELAY = 2
#: Minimum worker timeout in heartbeat intervals, so that one late heartbeat does not count as the worker's death.
_MIN_TIMEOUT = 2


def is_heartbeat_late(silence: float, interval: float) -> bool:
    """Return True if *silence* is too long for a worker that sends a heartbeat every *interval*."""
    return silence > _MAX_SILENCE * interval


def should_be_reported(age: float, interval: float) -> bool:
    """Return True if a worker has had enough time to report an event that happened *age* ago."""
    return age > _REPORT_DELAY * interval


def is_timeout_too_short(timeout: float, interval: float) -> bool:
    """Return True if one late heartbeat would exceed the worker timeout *timeout*."""
    return timeout < _MIN_TIMEOUT * interval
