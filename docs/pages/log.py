"""The page of the log lines, from the calls that write them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import celery_affinity

from .markdown import MADE, table

BEFORE = """# Log lines

All lines that celery_affinity logs at level INFO and above. `%s`, `%d` and `%r` stand for names, numbers and values. *Part*: the package of
`celery_affinity` that logs the line. [Lines of a worker](#lines-of-a-worker) explains the lines that matter most.

"""

AFTER = """
## Lines of a worker

The *guard* is a watchdog process of the worker. Warnings also appear at `--loglevel WARNING`, Celery's default.

| line | when | meaning |
|---|---|---|
| `celery_affinity VERSION: serves ...` | after the start, before Celery's `ready.` | Queues (eight at most, then the total), slots, the guard's process, namespace and server. |
| `celery_affinity: joined again; still holds N jobs` | after a reconnect | The worker kept its jobs; none runs twice because of that. |
| `celery_affinity: joined again, as a new member` | after a reconnect | The server had declared the worker dead, or had lost its data. A warning names each job that can run elsewhere. |
| `celery_affinity: left the fleet; N jobs returned to the queue` | end of a shutdown | N unstarted jobs are pending again in their old places; jobs ended by a cold shutdown are not counted. |
| `Type 'pdf' is paused, for 1800 s in all: db migration`, `Type 'pdf' is no longer paused` | on a [pause](../how-to/pause-and-drain.md) or resume; at the worker's start for each pause | No job of the type starts until the pause ends. |
| `affinity_reserve keeps 3 slots free for on-demand jobs of type 'pdf', which has 3: ...` | within a minute, in logs of workers that tick | The [reserve](../how-to/urgent-tasks.md#classes-and-shares-of-a-reserve) is too large: one job of the other class runs at a time. |
| `The broker does not answer`, `The broker answers again` | outage of the server | [Redis is down](../how-to/publish-fails.md#redis-is-down) |

In the first line, the URL has no password, and `behind prefix '...'` shows a `global_keyprefix`. `a server that does not tell its version`:
the broker's user cannot call `INFO`. `no guard: declared dead after 30 s of silence`: `affinity_guard` is false, or no guard could start;
then a warning has the reason.

## Suppressed lines

Each process (worker, pool process, dispatcher, web process, publisher) writes no more than ten lines a second about
jobs, keys and messages, each up to 8,000 characters. Then one line has the number of the others, and the logger and the line of code that
wrote most:

```text
WARNING celery_affinity: 1840 log lines were suppressed, 1835 of them from celery_affinity.schema.values:19: a process writes at most 10 lines a second about jobs, keys and messages
```

To check if a log is complete, search for `log lines were suppressed`. Three of the ten lines are kept for places in the code that have not
written in this second. An error's traceback (up to 70 lines, which count) is written once a minute; otherwise the line ends with the
exception: `... cannot be read and becomes a dead letter: ValueError: ...`. In workers the limit includes the loggers
`celery.worker.consumer.consumer`, `celery.worker.consumer.gossip`, `celery.worker.control`, `celery.worker.pidbox` and `kombu.pidbox`. It
excludes `celery.app.trace`, `celery.worker.request`, your own lines, and lines about the worker's membership and changed settings.
"""

_LEVELS = ("critical", "error", "exception", "warning", "info")
_PACKAGE = Path(celery_affinity.__file__).parent


def page() -> str:
    found = sorted(set(_lines()), key=lambda line: (_LEVELS.index(line[0]), *line[1:]))
    rows = ((("error" if level == "exception" else level).upper(), f"`{text}`", room) for level, text, room in found)
    return MADE + BEFORE + table(("level", "line", "part"), rows) + AFTER


def _lines() -> Iterator[tuple[str, str, str]]:
    """Yield level, text and room of each call of a logger whose text stands in the call."""
    for path in sorted(_PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            level, text = _level(node), node.args[0] if isinstance(node, ast.Call) and node.args else None
            if level and isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield level, text.value, path.relative_to(_PACKAGE).parts[0].removesuffix(".py")


def _level(node: ast.AST) -> str | None:
    """Return the level of the line that a call writes; None for other nodes. The guard's process has no logger."""
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "logger":
        return called.attr if called.attr in _LEVELS else None
    return "warning" if isinstance(called, ast.Name) and called.id == "_log_line" else None
