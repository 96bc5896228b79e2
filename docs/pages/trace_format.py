"""The page of the lab's recordings and of the format of a trace, from the table of its columns."""

from celery_affinity.lab.trace import COLUMNS, OLDER_SCHEMA, OUTCOMES, SCHEMA

from .markdown import MADE, table

BEFORE = """# Trace format and recording

A trace is a file with the activity of a fleet: its workers, the jobs that came, when and by which worker each was claimed, and how long it had its
slot. `celery -A shop affinity lab record` [records one](../how-to/lab.md#record-a-trace); every command of the lab reads it, also from a CSV file.

## Recording

```text
trace       monday.jsonl
length      10 min 0 s
jobs        48211 claims, 37 that waited at the end
fleet       12 workers, 5 types of jobs
```

- **Start and end.** Each worker notices within a heartbeat (5 s) that a recording is on. At the end the command waits up to one more heartbeat for
  the last claims. Ctrl-C ends a recording early; a second Ctrl-C does not wait for the last heartbeat.
- **If the command dies**, the workers stop within 30 s, the keys in Redis expire, and nothing is written. The file is replaced only at the end.
- **One recording at a time.** A second one is refused, with the time at which the first one ends.
- **Workers of an older version** do not record. The command names them at the end.
- **`affinity_record = 600`**: the first worker that starts begins a recording of 600 s, and all workers take part. Fetch it within a day with
  `celery -A shop affinity lab record --output morning.jsonl`, also before its end. It is deleted when it is over and fetched, or a day old. Until
  then a worker that starts begins no other recording; `--for` replaces it.
- **Memory.** The server keeps about 100 bytes for each claim, at most 100 MB. Then the oldest rows are dropped, and the command prints the number of
  missing claims. `lab record --for` fetches the rows every half second.

**Cost.** Publishing, claiming and ending a job need no further call. The end of a task notes a dozen values (1 µs), and the heartbeat puts them into
JSON (2.6 µs for each claim); a no-op task costs a worker 250 to 800 µs. The server adds its own times of claims and ends. A release ends one job and
claims the next at one moment, so the times of every other job are enough; the slots of a backlog are always busy. `python -m
benchmarks.recorded_claim` counts the server's instructions for each claim, also in % of a job's publish and end:

| claim | instructions on Valkey 9.1 | | instructions on Redis 7.0 | |
| --- | ---: | ---: | ---: | ---: |
| of a busy slot | 8,400 | 1.9 % | 8,800 | 2.3 % |
| of a slot that was free as its job came: both of its times are read | 17,200 | 2.9 % | 17,500 | 3.2 % |
| of a job that failed, or has a due time, a key, a tenant or another rule: these are read, too | 33,700 | 5.0 % | 38,000 | 6.1 % |

Most of that is the price of a command from Lua: one `HMGET` for every other claim takes 14,600 instructions. Without a recording nothing is added.

"""

HEADER = {
    "schema": f"`{SCHEMA}`; `{OLDER_SCHEMA}`, from older releases, is read, too",
    "length_us": "length of the trace, µs",
    "workers": "the workers at the beginning: `name`, `types`, `slots`",
    "settings": "the settings in force, by their name in Redis; times in µs",
    "paused": "the types that were paused at the beginning; `*`: all types",
    "versions": "of celery_affinity, and of the server",
    "recorded_at": "when the recording began",
    "lost": "number of claims that are missing",
}

_KEY = "it has none"
#: Column -> its meaning, and the meaning of a missing value.
MEANINGS = {
    "fence": ("the fencing token of the claim, which orders claims", "there was no claim"),
    "type": ("the type", "is required"),
    "mode": ("`queued`, or `demand` for an on-demand job", "`queued`"),
    "priority": ("0 to 10; 10 is the highest, regardless of the app's order", "0"),
    "enqueued_us": ("the start of the job's age", "is required"),
    "since_us": ("the earliest claim time: for a requeued job the time of the requeue", "`enqueued_us`"),
    "claimed_us": ("when its worker got it", "it was not claimed"),
    "started_us": ("when its task began", "it did not begin"),
    "ended_us": ("when the task had ended", "it had not ended"),
    "freed_us": ("when the server received the end", "the slot was free immediately"),
    "outcome": (", ".join(f"`{name}`" for name in OUTCOMES) + " (`returned`: it waited again)", "by the times"),
    "worker": ("the name of the worker", "it was not claimed"),
    "exclusive#": ("hash of the [exclusive key](../how-to/locks.md)", _KEY),
    "exclusive_limit": ("the number of jobs that may have this key at a time", _KEY),
    "rate#": ("hash of the key of a rate", _KEY),
    "rate_limit": ("the rate, such as `100/m`", _KEY),
    "merge#": (
        "hash that [merged calls](../how-to/merge.md) have in common; a run of merged calls is one row",
        "it does not merge",
    ),
    "tenant#": ("hash of the [tenant](../how-to/tenants.md)", _KEY),
    "task": ("the name of the task", "unknown"),
    "size": ("the `size` of the call", "unknown"),
    "start_within_us": ("`start_within`", _KEY),
    "deadline_us": ("time from `enqueued_us` to the deadline", _KEY),
    "head_us": ("the head start", "the lab computes it"),
}

CSV = """
A hash is made with a random text that the command forgets at the end: a key has one hash within a trace, and another one in the next trace. Limits
that [`affinity_limits`](settings.md#affinity_limits) sets for keys are in the rows of the jobs; limits of types, and quotas of tenants by their
hash, are in `settings`. Names of types, tasks and workers are written unchanged.

A trace does not contain scheduled jobs that were due later. It contains jobs that were revoked or expired while they waited only if
[`affinity_keep`](settings.md#affinity_keep) is above 60 s.

## CSV files from elsewhere

A CSV file has the columns above, in any order. `type` and `enqueued_us` are enough, and an empty cell is a missing value. `enqueued`, `claimed` and
so on are accepted as names of columns, too:

```text csv
type,enqueued_us,claimed_us,started_us,ended_us,worker
pdf,0,1200,1500,2001500,w1
pdf,400,2001700,2002000,4102000,w1
excel,900,1100,1300,8001300,w2
```

The rest is derived from the jobs: each worker serves the types that it ran, and has as many slots as it held claims at the same time; the settings
are the defaults. If all times are above 0, such as Unix times in µs, the trace begins with the first of them.

A fleet with other settings is replayed wrongly without them. Lines that begin with `#`, before the columns, add facts:

```text csv
# set limits.type:pdf=2
# set age_weight=32
# {"row":"join","worker":"w1","at_us":0,"types":["pdf"],"slots":1}
# {"row":"join","worker":"w2","at_us":0,"types":["pdf","excel"],"slots":1}
# {"row":"leave","worker":"w2","at_us":8500000}
type,enqueued_us,claimed_us,started_us,ended_us,worker
pdf,0,1200,1500,2001500,w1
pdf,400,2001700,2002000,4102000,w1
excel,900,1100,1300,8001300,w2
```

- **`# set NAME=VALUE`** is a setting, like in [`lab whatif --set`](../how-to/lab.md#what-if).
- **Rows `join` and `leave`** are the rows above. A row `join`, or a header with workers, means that the comments have the whole fleet. With such
  rows the beginning of the trace is 0, whatever the first time is.
- **The header**, on the first line, is the header above, too. Each field but `schema` may be missing:
  `# {"row":"header","schema":"celery-affinity-trace/2","paused":["excel"]}`.

`celery affinity lab record --output monday.csv` writes such a file. Its replay equals the replay of the JSON file.

An invalid file is refused in one sentence with its line: a row that is cut, a time that is not a number, a clock that steps back, an unknown column.
If only the last line is cut, the file is read without it, with a warning.
"""


def page() -> str:
    if {*MEANINGS} != {*COLUMNS}:
        raise LookupError(f"columns without a meaning, or without a column: { ({*MEANINGS} ^ {*COLUMNS}) }")
    header = table(("field of the header", "meaning"), ((f"`{name}`", text) for name, text in HEADER.items()))
    rows = ((f"`{name}`", *MEANINGS[name]) for name in COLUMNS)
    return (
        MADE
        + BEFORE
        + "## The file\n\nThe first line is the header, and each further line is a row: a worker that joins or leaves, or a job. Times are µs "
        "since the beginning\nof the trace. A job that was pending before that has a time below 0.\n\n"
        + header
        + "\nA row `join` has `worker`, `at_us`, `types` and `slots`; a row `leave` has `worker` and `at_us`. A worker that gets other types or "
        "slots leaves\nand joins at one time. A row `job` is one stay of a job in the queue, with the claim that ended it. A requeued job has "
        "a further row:\n\n" + table(("column", "meaning", "if it is missing"), rows) + CSV
    )
