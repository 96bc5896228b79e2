"""The page of the server functions: their callers, and the limits of one invocation."""

from .markdown import MADE

PAGE = """# Server functions

Each step in the life of a job or of a worker is one function of the library in Redis. [Internals](../internals/server-functions.md) describes
how they work together.

| server function | effect | caller |
|---|---|---|
| `publish` | client → pending, or scheduled for its ETA | the transport, when a task is sent |
| `ingest` | a list of stock Celery → pending, or scheduled | a dispatcher, after a tick that found messages there |
| `claim` | pending → inbox | the caller whose last reply named types as `unfilled` |
| `ack` | the message is settled: the job will not run again | the worker, when Celery acks |
| `release` | the slot is free; the reply contains the next job | the worker, at the end of a task |
| `requeue` | claimed → pending, with the original age | the worker, for a job that it cannot run |
| `join`, `sync`, `leave` | a worker enters; it sends heartbeats and the ids of its claims; it leaves | the worker |
| `add_metrics` | adds sums of waits, times in a slot and ends to the metrics of their types ([why](../internals/worker.md#metrics)) | the worker, with a heartbeat, if its jobs changed since the last one |
| `record` | adds ended claims to the stream of the current recording | the worker, with a heartbeat, while `lab record` or `affinity_record` is active |
| `heartbeat` | the worker lives, and its event loop runs or is blocked | the worker's guard |
| `recover` | the worker is dead: its jobs are reclaimed | the worker's guard |
| `tick` | scheduled → pending when due; expired pending jobs end; jobs of dead workers are reclaimed | a dispatcher, every 1.4 s (5 times a second without workers), and earlier when a job is due earlier. Three workers tick |
| `revoke` | pending and scheduled jobs end, by task id or by stamp | the transport, when a revoke is broadcast |
| `next_report`, `ack_report` | hands out the ends of jobs without a worker, one per invocation; confirms that the caller has the result | a dispatcher, which has the app |
| `declare_recurring`, `remove_recurring`, `pause_recurring` | declares, removes or pauses recurring calls | a dispatcher, for its app.conf; `celery_affinity.recur`, `celery affinity recurring` |
| `due_recurring`, `decline_recurring`, `fire_recurring` | returns a due recurring call; this app does not define its task; recurring → pending, and the next time is set | a dispatcher, which has the app |
| `batch_calls`, `ack_batch_reports` | returns the calls of a batch, one page per invocation; confirms that these calls have the result | the process that ran the batch, or a dispatcher |
| `split_batch` | claimed → pending, for calls that the batch's run cannot take | the process that runs the batch |
| `configure` | changes settings at run time | `celery affinity settings` |
| `pause`, `resume` | no job of a type or of a key starts; jobs start again | `celery affinity pause` and `resume`, HTTP, the web UI |
| `move` | pending and scheduled jobs get another type, mode or priority | `celery affinity move` and `prioritise`, HTTP, the web UI |
| `purge` | deletes pending and scheduled jobs of a type | Celery's `purge`, and a queue that is deleted |
| `replay`, `drop` | dead → pending; deletes dead letters | `celery affinity dead`, HTTP, the web UI |
| `repair` | rebuilds data that another program deleted or overwrote | a dispatcher, every minute; a process whose invocation failed on such data; `celery affinity check --repair` |

## Work per invocation

While a function runs, the server does nothing else. So each invocation has a limit, and another invocation continues:

| work | limit | continued by |
|---|---|---|
| jobs moved, ended or returned | 10; 5 requeued, 25 published, 20 purged, 5 with a key | the next invocation |
| calls of a batch reported, deleted, or made pending again (`dead replay`) | 100 | the next invocation |
| calls of a batch deleted with it, because it is purged, dropped, or exceeds the dead letters | 10 | a dispatcher, 100 per invocation |
| bytes of messages moved | 1 MB, and the message that exceeds it | the next invocation |
| claims that one heartbeat of a worker is queried about | 10 | the next heartbeat, immediately |
| fields of metrics in one `add_metrics` | 300, and the rest of its last type | the worker's next invocation, immediately |
| dead workers removed by one tick | 10, or as many as have 1,000 queues together | the next tick |
| types among which a claim for all free slots chooses | 100 types with pending jobs, types with on-demand jobs first | the next invocation; a release, which has one slot to fill, compares all types of its worker |
| types filled, or opened, after a change of limits | 50 | the next invocation |
| claims counted for new limits and reserves | 100, of 20 workers | the next tick, immediately |
| lanes that jobs of a key enter; lanes that they leave | 50; 100 | the next tick, immediately |
| dead letters deleted if `affinity_dead_max` is exceeded | 10 | the next dead letter's invocation |
| profiles with a free slot compared for a job | 100 | none: the job goes to the most specialised of these |
| holders of a job's hint compared with a sample of the free workers | 10, of the 30 that took it up last; with more than ten profiles, of the 10 that did | none: the job goes to the best of these |

## What two releases share

Two releases with one schema work on one server for a while:

- **Keys.** A process that finds no schema number writes its own; a worker does so at each `join`, because the server may have been emptied. Each
  connection and command checks the number before it writes, with one GET. `check` reports a wrong number, and nothing else.
- **Functions.** Each release loads and calls its own library, whose name has the schema number and a digest; an unused library is deleted. Only
  producers [without the right to load functions](../how-to/security.md#producers) need a worker or dispatcher of their release.
- **Messages.** A reader accepts messages with more parts, up to complete messages of stock Celery. A release that omits parts needs a new schema.
- **Settings.** A worker sets the values of its `app.conf` when it first joins, not when it reconnects: an old worker does not undo its successor's
  values.
- **Ticks, recovery and answers to callers** concern jobs of both releases, so a rule that places jobs differently is first a setting, and the default
  in a later release.
- **Remote control.** A worker answers an unknown command with an error.
"""


def page() -> str:
    return MADE + PAGE
