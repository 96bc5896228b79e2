"""The page of the findings of `celery affinity check`, from the docstrings of their rules."""

from types import ModuleType

from celery_affinity.check import app, due_times, jobs, results, server, tenants, workers
from celery_affinity.check.finding import rules_of

from .markdown import MADE, prose, table

BEFORE = """# Findings of affinity check

`celery affinity check` finds mistakes in an app, its server and its workers, and prints how to fix them.

```console
$ celery -A shop affinity check
```

It examines the app's settings and tasks, the server, the live workers (by remote control, so also workers with stock Celery's transport) and the
jobs. Each *finding* has a level, an id, a description and a remedy. Only `--repair` changes anything:

```text output
app shop, broker redis://:**@redis.internal:6379/0, valkey 9.1.2, 2 alive, 3 workers answered

WARNING stock-worker
        Worker reports@node7 consumes pdf with another transport: it gets no scheduled jobs. While
        it is free, it gets messages from producers with that transport.
        -> Start it again with broker_transport = "celery_affinity:Transport", as the other workers
           have it.

WARNING type-unserved
        No live worker serves type 'excel', which task shop.tabulate declares: such a job would
        wait.
        -> Start a worker with -Q excel.

0 errors, 2 warnings, 0 notes
```

| exit code | meaning |
| --- | --- |
| 0 | no errors; there may be warnings and notes |
| 1 | with `--strict`: there are warnings |
| 2 | there are errors, or the command line is invalid |

| option | effect |
| --- | --- |
| `--strict` | exit with 1 if there are warnings |
| `--repair` | [repair wrong counts](../how-to/redis.md#repair-wrong-counts) in Redis instead; with `--dry-run`, only report them |
| `--no-fleet` | check only the app and the server, for machines without workers |
| `--ignore ID` | omit a finding that you accept; may be repeated |
| `--timeout 1` | seconds to wait for the workers' answers: raise this for distant workers |
| `--json` | print `exit_code`, `app`, `broker`, `server`, `workers`, and `findings`, each with `id`, `level`, `what` and `todo` |

The command ends within half a minute, whatever the server does, and never prints passwords.

- **At 3 a.m.**, read the errors, which come first. Each error is a reason why jobs are lost, refused or stuck now.
- **In CI**, before a deployment, run `celery -A shop affinity check --no-fleet --strict --ignore persistence-off --ignore memory-unlimited` with a
  server of the CI job. It finds settings and tasks that a worker would refuse.
- **After a deployment**, it finds workers that still run an old version or stock Celery.
- **Misspelt names.** Celery ignores an unknown name in a setting. `check` compares such names with the app's tasks, with declared and served types,
  and with the keys of the tasks' rules, and suggests the closest name. An app without tasks, such as a producer, has no such findings.

Errors mean that jobs are lost, stuck or refused, now or later. Warnings are risks, and notes are good to know.
"""

#: Title of a group of findings -> the modules of their rules.
GROUPS: dict[str, tuple[ModuleType, ...]] = {
    "The app": (app, results),
    "The server": (server,),
    "The workers": (workers,),
    "The jobs": (jobs, due_times, tenants),
}

#: Finding -> the page about it.
MORE = {
    "not-recurring": "[Recurring calls](../how-to/recurring-calls.md)",
    "void-options": "[Migrate](../how-to/migrate.md)",
    "priority-range": "[Differences](../explanation/differences.md)",
    "merges-twice": "[Merge](../how-to/merge.md)",
    "batches-small": "[celery-batches](../how-to/coming-from.md)",
    "cluster": "[Redis Cluster](../how-to/cluster.md)",
    "cluster-results": "[Redis Cluster](../how-to/cluster.md#results)",
    "schema": "[SchemaError](../how-to/upgrade.md#schemaerror)",
    "cohorts-differ": "[Cohorts](../how-to/cohorts.md)",
    "memory-full": "[Redis is full](../how-to/publish-fails.md)",
    "snapshots-only": "[Persistence](../how-to/redis.md#persistence)",
    "clock-stepped": "[Clocks](../explanation/reliability.md#clocks)",
    "remote-control": "[Observers](../how-to/security.md#observers)",
    "stock-worker": "[Migrate](../how-to/migrate.md)",
    "type-waits": "[Move jobs](../how-to/cancel-move-replay.md)",
    "tenant-without-value": "[Tenants](../how-to/tenants.md)",
    "hints-without-effect": "[Route tasks](../how-to/route-tasks.md)",
    "preemptible-without-tenant": "[Preempt](../how-to/preempt.md)",
    "preemptible-not-stopped": "[Choose a pool](../how-to/deploy.md#choose-a-pool)",
    "key-in-cohorts": "[Cohorts](../how-to/cohorts.md#limits-count-per-cohort)",
    "key-used-in-cohorts": "[Cohorts](../how-to/cohorts.md#limits-count-per-cohort)",
    "cohort-down": "[Cohorts](../how-to/cohorts.md#when-a-server-is-down)",
    "left-to-celery": "[Workers over HTTP](../how-to/workers-in-other-languages.md#before-production)",
    "stock-messages": "[Ran twice or lost](../how-to/ran-twice-or-lost.md)",
    "reserve-too-large": "[Reserves](../how-to/urgent-tasks.md)",
    "persistence-off": "[Persistence](../how-to/redis.md#persistence)",
    "memory-unlimited": "[Redis settings](../how-to/redis.md)",
    "eviction": "[Redis settings](../how-to/redis.md)",
    "nobody-ticks": "[Scale to zero](../how-to/scale.md#scale-to-zero)",
    "worker-stalled": "[Worker problems](../how-to/worker-problems.md)",
    "versions": "[Upgrade](../how-to/upgrade.md)",
    "affinity-versions": "[Upgrade](../how-to/upgrade.md)",
}


def page() -> str:
    return MADE + BEFORE + "".join(f"\n## {title}\n\n{_table(modules)}" for title, modules in GROUPS.items())


def _table(modules: tuple[ModuleType, ...]) -> str:
    """Return one row for each finding: two rules can have one id."""
    levels, texts = {}, {}
    for rule in rules_of(*modules):
        if not rule.about:
            raise LookupError(f"the rule of {rule.id} has no docstring")
        levels[rule.id] = str(rule.level)
        texts.setdefault(rule.id, []).append(prose(rule.about).replace("\n\n", " "))
    rows = ((f"`{id_}`", levels[id_], " ".join([*texts[id_], *filter(None, [MORE.get(id_)])])) for id_ in texts)
    return table(("finding", "level", "meaning, and what to do"), rows)
