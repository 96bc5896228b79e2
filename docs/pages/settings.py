"""The page of the settings, from their dataclass."""

import ast
import inspect
import re
from dataclasses import MISSING, Field, fields
from itertools import pairwise

from celery_affinity.settings import table as table_module
from celery_affinity.settings.loader import CHANGEABLE
from celery_affinity.settings.table import Settings

from .markdown import MADE, prose, table

BEFORE = """# Settings

Write settings in `app.conf` or in Celery's configuration file, in lower case. With a namespace such as `CELERY`, their names are
`CELERY_AFFINITY_WORKER_TIMEOUT` and so on. Times are in seconds. A worker with an unknown setting or an invalid value does not start: it ends
with a `SettingError` that says what is accepted. A process reads the settings once, when it first publishes, connects or starts a worker: what
changes in its `app.conf` later, also within a mapping, has no effect there.

[Precedence](options.md#settings) lists the sources of a value.

## Change at run time

Workers write the settings of `app.conf` to Redis, and the whole fleet shares one value per setting. `celery -A shop affinity settings`
shows each value and its source ([the command](commands.md#settings)):

```console
$ celery -A shop affinity settings
$ celery -A shop affinity settings set age_weight 32
$ celery -A shop affinity settings set rarity free priority_percentage 90
$ celery -A shop affinity settings reset age_weight           # back to app.conf; or --all
```

- A change needs no restart. It applies from the next claim on, also to pending jobs; running jobs continue. Every worker logs it.
- `set` replaces the whole value, also if it is a mapping such as `limits`. `reset` restores the value of `app.conf`.
- An invalid value changes nothing. The error contains the setting, the accepted values, and the rejected value.
- A change is stored in Redis until a reset, or until a worker starts with a new value in `app.conf`. Change `app.conf` as well, so that
  workers that start later have the new value, too.
- Two apps that share a broker share the settings, and so do two versions of one app. The latest change wins, the workers of both apps log a
  warning, and `affinity settings` shows the row in red.
- A change of `affinity_priority_order` at run time reverses the priorities of all jobs, even of pending jobs. A change in `app.conf` applies
  to jobs that are published later.
- Settings of a single process, such as `affinity_heartbeat_interval` and `affinity_task_types`, change only in `app.conf`.

## All settings

"""

AFTER = """
## Connection

| setting | value | meaning |
| --- | --- | --- |
| `broker_transport` | `"celery_affinity:Transport"` | installs celery_affinity in publishers and workers |
| `broker_url` | `redis://`, `rediss://`, `sentinel://`, `socket:///path` or, for a [cluster](../how-to/cluster.md), `redis-cluster://`; or a list of them. `valkey://` and `valkeys://` mean the same as `redis://` and `rediss://`, in `result_backend` as well | where Redis or Valkey is |
| `broker_transport_options` | the options of kombu's Redis transport, and `namespace` | [options of the connection](python.md#transport); fleets with different namespaces can share a server |

"""


def page() -> str:
    named = [(f"affinity_{each.name}", each) for each in fields(Settings)]
    rows = (
        (f"[`{name}`](#{name})", f"`{_default(each)}`", "yes" if each.name in CHANGEABLE else "")
        for name, each in named
    )
    text = MADE + BEFORE + table(("setting", "default", "changes at run time"), rows)
    for name, each in named:
        text += (
            f"\n## {name}\n\n{_MEANINGS[each.name]}\n\n- Default: `{_default(each)}`\n- Accepted: {_accepted(each)}\n"
        )
    return text + AFTER


def _default(each: Field) -> str:
    value = each.default if each.default_factory is MISSING else each.default_factory()
    return repr(list(value) if isinstance(value, tuple) else value)


def _accepted(each: Field) -> str:
    words = each.metadata["check"](_Nothing())
    assert words, each.name
    return _VALUE.sub(r"`\g<0>`", words)


#: A value of Python in a sentence: a mapping (of mappings), a list, or a text.
_VALUE = re.compile(r"\{(?:[^{}]|\{[^{}]*\})*\}|\[[^\]]*\]|'[^']*'")


class _Nothing:
    """A value that no setting accepts."""


def _docstrings() -> dict[str, str]:
    """Return by name the text below each field of the dataclass."""
    (body,) = (each.body for each in ast.parse(inspect.getsource(table_module)).body if _is_the_class(each))
    found = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[field.target.id] = prose(text.value.value).replace("->", "→")
    return found


def _is_the_class(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == Settings.__name__


_MEANINGS = _docstrings()
