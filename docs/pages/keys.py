"""The page of the keys in Redis, from the one module that spells them."""

from celery_affinity.schema.keys import KEYS, SCHEMA

from .markdown import MADE, table

BEFORE = f"""# Keys in Redis

Every key of a fleet begins with `<global_keyprefix>{{<namespace>:<cohort>}}:`, where the cohort is `default`, or that of the type. The schema of their contents has the
number {SCHEMA} ([upgrades](../how-to/upgrade.md#schemaerror)). Reading the keys is safe. Only the server functions may write them:
[Security](../how-to/security.md) has the rights of each user, and `celery -A shop affinity check --repair` repairs damaged ones.

"X → Y" means: for each X, Y. "By time" gives the score in a sorted set (zset). Times are in µs. A lane is named by mode and priority, such as
`queued.5`; the [glossary](glossary.md) has the other words.

"""

DAMAGED = """
## Keys that another program deleted or overwrote

`celery -A shop affinity check --repair`, and workers once a minute, rebuild keys from other data. Each difference is logged.

| damaged data | outcome |
|---|---|
| an index entry without its job | deleted. If the job's message remains, it becomes a dead letter, `unreadable` |
| a lane's entry without its job | the job runs if its message remains; otherwise the entry is deleted |
| a member of a set of waiting jobs that is not an id (a blank, a line break, not printable ASCII) | deleted when it is first. No worker gets it, and it becomes no dead letter |
| a head of a job that does not wait | the head is rebuilt. The job does not run a second time |
| an index derived from other data: free slots, capacity, profiles, workers, heads, the jobs of a key, recurring calls by time | each differing entry is rewritten |
| limits, reserves and pauses of types | rebuilt from settings and pauses; claims are counted again |
| a job that does not agree with its worker's claim | follows the claim, and counts for its limit and key |
| the hash of a batch of [merged calls](../how-to/merge.md) | rebuilt from the calls, which wait again. If their run has ended, each call without a result gets the error that its result is lost |
| a claim that its worker still holds | rebuilt at the worker's next sync |
| a number or a setting without a valid value | deleted; a setting then has its last value from `app.conf` |
| a worker's types that do not match its profile | the hash is renamed to `set_aside:…`, and the worker joins again |
| a key kept for a retry that is not scheduled; a rate's time further away than an hour | the key is free; the time is a period from now |
| both `lane:key:waiting` and `lane:kept:…` | the jobs that only these two list stay pending |
| a key of another type | renamed to `set_aside:…` and kept for a week |

Data that cannot be derived is lost: a deleted lane, a message, the schedule, the calls of a batch, and the jobs of a dead worker whose `claims` were
deleted.
"""


def page() -> str:
    rows = [
        (f"`{template.replace('%s', '…')}`", kind, content.replace("->", "→"))
        for template, kind, content in KEYS.values()
    ]
    return MADE + BEFORE + table(("key", "type", "content"), rows) + DAMAGED
