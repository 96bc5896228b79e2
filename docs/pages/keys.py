"""The page of the keys in Redis, from the one module that spells them."""

from celery_affinity.rules.keys import KEYS, SCHEMA

from .markdown import MADE, table

BEFORE = f"""# Keys in Redis

Every key of a fleet begins with `<global_keyprefix>{{<namespace>:<cohort>}}:`, so that one shard of a cluster has them all. The
schema of their contents has the number {SCHEMA}. Reading them is safe; writing them is the scripts' alone:
[Rights](../how-to/acl.md) says which user may touch what, and `celery -A shop affinity check --repair` mends them.

"""


def page() -> str:
    rows = [
        (f"`{template.replace('%s', '…')}`", kind, content.replace("->", "→"))
        for template, kind, content in KEYS.values()
    ]
    return MADE + BEFORE + table(("key", "type", "content"), rows)
