"""The values drawn by the random-operation tests."""

from celery_affinity.policy.slot_math import NOTHING, PrefetchLimit
from celery_affinity.scheduler.messages import TaskRuns, TypeMetricsDelta
from celery_affinity.schema import histograms
from celery_affinity.schema.constants import FORCE, MAX_MOVES
from celery_affinity.schema.rules_codec import HINTED, OF_KEYS
from celery_affinity.schema.values import withdrawn_mark

from . import draw

TYPES = ("pdf", "excel", "a {rare}: one")
WORKERS = ("w0", "w1", "w2", "w3", "w4")
APPS = ("shop", "shop", "an app: other")
NAMES = dict(zip(WORKERS, ("one@host", "two@host", "a b@host", "one@host", "five@host"), strict=True))
#: The tasks that some of these workers can stop.
STOPS = {"w0": FORCE, "w1": "mail tidy%20up"}

types = draw.sampled_from(TYPES)
WITHDRAWN = (withdrawn_mark(TYPES[0]), TYPES[1])
some_types = draw.sampled_from(
    [TYPES[:1], TYPES[1:2], TYPES[2:], TYPES[:2], TYPES[:2], TYPES[1:], TYPES[1:], TYPES, WITHDRAWN]
)
priorities = draw.sampled_from([0, 0, 1, 5, 9, 10])
delays_us = draw.sampled_from([0, 0, 0, 0, 0, 1, 1_000_000, 3_000_000, 64_000_000, -1_000_000])
#: In µs, about as long as the merge windows.
short_delays_us = draw.sampled_from([0, 0, 0, 1, 300_000, 600_000, 1_000_000])
urgent = draw.sampled_from([False, False, False, False, True])
expiries_us = draw.sampled_from([None, None, None, None, None, None, 0, -1, 1, 1_000_000, 3_000_000, 64_000_000])
#: Fields with values that no job may have, in the scripts' form.
spoilt_fields = draw.sampled_from(
    [
        ("id", ""),
        ("id", "a b"),
        ("id", "a\n"),
        ("id", "i" * 256),
        ("type", ""),
        ("type", "a b"),
        ("type", "\u00e9"),
        ("mode", ""),
        ("mode", "queued "),
        ("priority", "x"),
        ("priority", "-5"),
        ("priority", "11"),
        ("priority", "07"),
        ("priority", "0 1"),
        ("priority", "%"),
        ("times", "nan"),
        ("times", "0x10"),
        ("times", "1e9"),
        ("times", ""),
        ("times", "9" * 19),
        ("times", "0 "),
        ("times", "0 d5 w5"),
        ("times", "0 w-5"),
        ("task_id", "a b"),
        ("expires_us", "nan"),
        ("expires_us", "-inf"),
        ("stamps", "a:\nb"),
    ]
)
#: The task of a repeated publish: the same, another task with jobs, or a new one.
other_tasks = draw.sampled_from([None, "task of a 0", "another task", ""])
#: The known job that a publish of several jobs contains as well, counted from the last one, or None.
known_indexes = draw.sampled_from([None, None, None, None, 0, 3, 12])
STAMPS = ("tenant:a", "tenant:b", "run%20of:7")
some_stamps = draw.sampled_from([(), (), (), (), STAMPS[:1], STAMPS[:1], STAMPS[:2], STAMPS[1:]])
#: Rules of jobs, with few keys for many jobs.
RULES = (
    "key=a limit=1",
    "key=a limit=1",
    "key=a limit=3",
    "key=b%20c limit=2",
    "key=b%20c limit=2",
    "key=d%3A1 limit=1",
    "key=o limit=1 order=1",
    "key=o limit=1 order=1",
    "key=rate%3Ar rate=2/3000000",
    "key=rate%3Ar rate=3/1000000",
    "key=rate%3As rate=1/64000000",
)
#: Rules of jobs with two keys, which overlap with the single keys.
RULES_OF_TWO = (
    "key=rate%3Ar rate=2/3000000 key=a limit=1",
    "key=rate%3Ar rate=2/3000000 key=o limit=1 order=1",
    "key=rate%3Ar rate=3/1000000 key=b%20c limit=2",
    "key=rate%3At rate=8/8000000 key=a limit=1",
    "key=rate%3At rate=8/8000000 key=b%20c limit=2",
    "key=a limit=1 key=rate%3At rate=8/8000000",
    "key=b%20c limit=2 key=rate%3At rate=8/8000000",
    "key=o limit=1 order=1 key=rate%3Ar rate=2/3000000",
)
#: Rules of tenants' jobs, some of them with further keys.
RULES_OF_TENANT = tuple(
    f"key=tenant%3A{name} quota=settings{more}"
    for more in ("", " preemptible=1")
    for name in ("a", "a", "b", "c%2A", "d")
)
RULES_OF_MANY = (
    *RULES_OF_TWO,
    *(f"{RULES[number]} {tenant}" for number, tenant in zip((0, 3, 6, 8, 10), RULES_OF_TENANT * 2, strict=False)),
    *(f"{RULES_OF_TWO[number]} {tenant}" for number, tenant in zip((0, 1, 5), RULES_OF_TENANT, strict=False)),
)
#: What is paused, and for how long in µs; None: until a resume.
PAUSABLE = ("type:pdf", "type:pdf", "type:excel", "key:a", "key:rate%3Ar", "key:o", "key:tenant%3Aa", "*")
pauses_us = draw.sampled_from([None, None, 1_000_000, 64_000_000])
#: Merge rules: few keys, so that calls meet, and small limits. Messages have some 20 bytes, or 1,500.
MERGES = (
    "merge=m most=2 bytes=1000000",
    "merge=m most=3 bytes=1000000",
    "merge=m most=3 bytes=2000",
    "merge=n%20o most=1000 bytes=1000000",
    "merge=n%20o most=100 bytes=1000000",
    "merge=n%20o most=100 bytes=1000000 wait=3000000/4000000",
)
#: Merge rules with a window, for all ids that begin with "p".
PATIENT = (
    "merge=m most=3 bytes=2000 wait=1000000/3000000",
    "merge=p most=4 bytes=1000000 wait=1000000/5000000",
    "merge=p most=4 bytes=1000000 wait=1000000/5000000",
    "merge=p most=4 bytes=1700 wait=3000000/5000000",
)
#: Id suffixes: they tell whether the job merges, and has a key.
_hints = [HINTED] * 5 + [HINTED + more for more in (*OF_KEYS, "+", "+!")]
marks = draw.sampled_from([*[""] * 4, *"!!&&$$++", "+!", "+&", "+$", *_hints])
#: In µs, on both sides of every time limit: a recent tick, a counted silence, a heartbeat, a timeout; and backwards.
SECOND_US = _S = 1_000_000
times_us = draw.sampled_from(
    [_S, _S, _S, _S + 1, 3 * _S, 3 * _S, 3 * _S + 1, 5 * _S, 5 * _S, 5 * _S + 1, 64 * _S, _S // 2, 1, -_S]
)
#: Priorities of workers among equally specialised ones.
worker_priorities = draw.sampled_from([0, 0, 0, 1, -2])
#: Jobs or slots, more than two invocations move.
BURST = 2 * MAX_MOVES + 10
slots = draw.sampled_from([1, 1, 2, 3, BURST])
others = draw.sampled_from([0, 0, 0, 0, 0, 1, 3, -1, -1, -3])
#: Intervals of recurring calls.
intervals_us = draw.sampled_from([_S, 3 * _S, 3 * _S, 64 * _S])
#: Indexes of workers or claims. An index from `GONE` on represents a former or invalid one.
indexes = draw.integers(0, 119)
some_indexes = draw.lists(indexes, min_size=1, max_size=3)
#: The tasks that a worker reports as stoppable.
stops = draw.sampled_from(["", "force", "force", "t0", "t0 t2"])
#: Limits of prefetched jobs: none, a number of jobs, or an amount of work.
held_ahead = draw.sampled_from(
    [NOTHING, NOTHING, PrefetchLimit(1), PrefetchLimit(3), PrefetchLimit(12)]
    + [PrefetchLimit(work_us=us, costs={TYPES[0]: 400, TYPES[1]: 7_000}) for us in (399, 1_000, 20_000)]
    + [PrefetchLimit(work_us=20_000, costs={TYPES[1]: 10_000})]
)
GONE = 90
_fields = [histograms.sum_field("queued"), *(histograms.wait_field("done", bucket) for bucket in range(3))]
_grown = draw.mapped(dict, draw.lists(draw.tuples(draw.sampled_from(_fields), draw.integers(1, 3)), max_size=3))
_ended = draw.sampled_from([0, 1, 1, 2, 7, 8, 9, 30])
_each_us = draw.sampled_from([0, 1, 999, 100_000, 7_000_001])


def _sums(drawn):
    type_, grown, ended, each_us, more_us = drawn
    if not ended:
        return TypeMetricsDelta(type_, grown)
    return TypeMetricsDelta(type_, grown, ended, ended * each_us + more_us, f"{each_us} {more_us} {ended}")


#: Metric deltas of a worker for a type, served or not.
some_sums = draw.mapped(_sums, draw.tuples(draw.sampled_from(TYPES), _grown, _ended, _each_us, draw.integers(0, 7)))
_size = draw.sampled_from([None, 0, 0.25, 1, 1, 3, 40, 1e6])
_run_us = draw.sampled_from([0, 1, 250_000, 1_000_000, 3_000_001, 60_000_000])
#: Runs of a task, with up to 50 runs before the last ones.
some_runs = draw.mapped(
    lambda drawn: TaskRuns(drawn[0], drawn[1] + len(drawn[2]), drawn[2]),
    draw.tuples(
        draw.sampled_from(["pdf.render", "pdf.render", "a b", "é"]),
        draw.sampled_from([0, 0, 50]),
        draw.lists(draw.tuples(_size, _run_us), min_size=1, max_size=12),
    ),
)
outcomes = draw.sampled_from(
    [
        "acked",
        "acked",
        "ignored",
        "rejected",
        "unsettled",
        "unsettled",
        "requeued",
        "requeued Reject: not now",
        "aborted TimeLimitExceeded: 30",
        "returned",
        "failed ValueError: no  such\npage",
        "failed",
        "failed Long: " + "x" * 1_200,
        "revoked",
        "expired",
        "rejected Reject: \u00e9",
        "unsettled WorkerLostError: signal 9 (SIGKILL)",
        "preempted 41000000",
        "preempted",
    ]
)
a_setting = draw.sampled_from(
    [
        ("worker_timeout_us", "4000000"),
        ("worker_timeout_us", "10000000"),
        ("heartbeat_interval_us", "1000000"),
        ("dead_max", "0"),
        ("dead_max", "2"),
        ("dead_max", "2"),
        ("keep_us", "600000000"),
        ("keep_us", "600000000"),
        ("keep_us", "60000000"),
        ("keep_max", "2"),
        ("keep_max", "3"),
        ("keep_failed", "1"),
        ("max_deliveries", "1"),
        ("max_deliveries", "2"),
        ("max_requeues", "0"),
        ("max_requeues", "2"),
        ("requeue_delay_max_us", "0"),
        ("requeue_delay_max_us", "1500000"),
        ("target_wait_us", "0"),
        ("target_wait_us", "5000000"),
        ("stretch", "2.5"),
        ("stretch", "0.001"),
        ("stretch", "0"),
        ("rarity", "free"),
        ("rarity", "free"),
        ("rarity", "free"),
        ("rarity", "capacity"),
        ("priority_weight", "0.1"),
        ("age_weight", "0.3333333333333333"),
        ("rarity_weight", "3000"),
        ("rarity_weight", "100000"),
        ("rarity_weight", "0"),
        ("on_demand_weight", "1"),
        ("on_demand_age_weight", "7.7"),
        ("on_demand_age_weight", "300"),
        ("on_demand_age_weight", "300"),
        ("on_demand_age_cap_us", "3000000"),
        ("on_demand_age_cap_us", "3000000"),
        ("on_demand_age_cap_us", "3000000"),
        ("priority_percentage", "50"),
        ("priority_percentage", "0"),
        ("priority_order", "lower-first"),
        ("priority_order", "higher-first"),
        ("limits", "a=2 type%3Apdf=2"),
        ("limits", "a=2 type%3Apdf=1 rate%3Ar=1/4000000"),
        ("limits", "type%3Apdf=3 rate%3At=2/64000000 rate%3A*=5/1000000 *=3"),
        ("limits", "type%3Aexcel=2 type%3Apdf=3"),
        ("limits", "type%3Aexcel=0"),
        ("limits", "a=0 b%20c=2 b%20*=1 *=3"),
        ("limits", "a=2 type%3Aexcel=1 no_type%3Apdf=0 b%20c=1"),
        ("limits", "d%3A*=2 d*=0 *=3"),
        ("limits", ""),
        ("tenants", "a=max:2 b=max:0"),
        ("tenants", "a=max:1 *=max:2,weight:3"),
        ("tenants", "a=max:4 *=max:6"),
        ("tenants", "a=max:none,weight:2 b=max:3,weight:5"),
        ("tenants", "*=max:1 a=max:none"),
        ("tenants", "a=max:none,min:1 d=max:2,min:2,weight:4"),
        ("tenants", "*=max:3,min:1 b=max:none,min:2"),
        ("tenants", "d=max:none,min:2"),
        ("tenants", ""),
        ("preemption_delay_us", "0"),
        ("preemption_delay_us", "1000000"),
        ("preemption_grace_us", "1000000"),
        ("preemption_exempt_us", "0"),
        ("preemption_exempt_us", "3000000"),
        ("preemption_max", "1"),
        ("tenant_turns", "share"),
        ("tenant_turns", "share"),
        ("tenant_turns", "age"),
        ("tenant_half_life_us", "5000000"),
        ("tenant_half_life_us", "0"),
        ("reserve", "pdf:queued=1"),
        ("reserve", "pdf:queued=1 *:0=2"),
        ("reserve", "*:0-5=50% excel:on_demand=1"),
        ("reserve", "a%20*:10=100% pdf:0=100% excel:9=30%"),
        ("reserve", "*:queued=3 p*:1-9=1"),
        ("reserve", ""),
        ("reserve_patience_us", "3000000"),
        ("key_patience_us", "2000000"),
        ("key_patience_us", "0"),
        ("reserve_patience_us", "0"),
        ("placement", "weighted"),
        ("placement", "weighted"),
        ("placement", "weighted"),
        ("placement", "idle"),
        ("placement_priority_weight", "0"),
        ("placement_priority_weight", "-10"),
        ("placement_free_weight", "0"),
        ("placement_free_weight", "-2.5"),
        ("placement_locality_weight", "0"),
        ("placement_locality_weight", "5"),
        ("locality_bonus", "0"),
        ("locality_bonus", "80"),
        ("locality_bonus", "1024"),
        ("locality_bonus", "3000.5"),
        ("sample_size", "1"),
        ("sample_size", "2"),
        ("sample_size", "0"),
    ]
)
some_settings = draw.mapped(dict, draw.lists(a_setting, max_size=3))

#: Initial settings for turns of tenants.
_SHARES = {"tenant_turns": "share"}
turns_of_tenants = draw.sampled_from([{}, _SHARES, _SHARES | {"tenant_half_life_us": "5000000"}])

#: Initial settings for placement and locality.
_BONUS = {"locality_bonus": "80"}
preferences = draw.sampled_from(
    [{}, _BONUS, {"locality_bonus": "3000"}, _BONUS | {"placement": "weighted", "sample_size": "2"}]
)
#: Hints of jobs: few, and enough that a worker does not hold all.
HINTS = ("m", "m", "m", "n%20o", "n%20o", *(f"h{number}" for number in range(12)))

#: With these settings, the number of fitting slots decides a job's place as often as its priority.
SHARP_RARITY = {
    "rarity": "free",
    "rarity_weight": "8000",
    "priority_weight": "1024",
    "priority_percentage": "100",
}

#: With these settings, on-demand jobs overtake queued jobs of similar priority within seconds.
CROSSING = {
    "priority_weight": "100",
    "age_weight": "16",
    "on_demand_weight": "1",
    "on_demand_age_weight": "300",
    "on_demand_age_cap_us": "3000000",
}
LONG_CROSSING = CROSSING | {"on_demand_age_cap_us": "60000000"}

#: With these settings, a second of age outweighs a priority: the next job of a lane often loses to another lane's head.
NEAR = CROSSING | {"priority_weight": "10"}
