"""The page of the keys in Redis, from the one module that spells them."""

from celery_affinity.schema.keys import KEYS, SCHEMA

from .markdown import MADE, table

BEFORE = f"""# Keys in Redis

Every key of a fleet begins with `<global_keyprefix>{{<namespace>:<cohort>}}:`, where the cohort is `default`, or that of the type. The schema of their contents has the
number {SCHEMA} ([upgrades](../how-to/upgrade.md#schemaerror)). Reading the keys is safe. Only the scripts may write them:
[Security](../how-to/security.md) has the rights of each user, and `celery -A shop affinity check --repair` repairs damaged ones.

"X → Y" means: for each X, Y. "By time" gives the score in a sorted set (zset). Times are in µs. A lane is named by mode and priority, such as
`queued.5`; [How it works](../explanation/how-it-works.md#words) has the other words.

"""


def page() -> str:
    rows = [
        (f"`{template.replace('%s', '…')}`", kind, content.replace("->", "→"))
        for template, kind, content in KEYS.values()
    ]
    return MADE + BEFORE + table(("key", "type", "content"), rows)
