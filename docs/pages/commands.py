"""The page of the commands, from their own help."""

from collections.abc import Iterator

import click

from celery_affinity.cli import affinity

from . import outputs
from .markdown import MADE, table

BEFORE = """# Commands

All commands have the form `celery -A shop affinity COMMAND`. `-A` names the app, as with every command of Celery. `--json` prints the same facts
for scripts, in the same form as [HTTP](http.md) and [Python](python.md).

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | the broker does not answer, nothing was found, or the request was refused: the last line says which |
| 2 | a command, an option or an argument is wrong |

[`check`](check.md) and [`scale-in`](../how-to/scale.md#remove-one-worker) have exit codes of their own. The examples come from one small
fleet, and a test compares them with what the commands print.

"""

#: Text behind the help of a command.
NOTES = {
    ("top",): """
![A terminal: types with pending jobs and slots, workers, and the next jobs](../how-to/top.svg)

The picture shows three tables of `top`: the types with pending jobs and free slots; the workers; and the next jobs with score and wait. All
six slots are busy. The on-demand job, which came 2 s ago, is next; the excel job with priority 3 follows.
""",
    ("explain",): """
| line | meaning |
|---|---|
| `reason`, `why` | the reason of a dead letter; the exception that ended the job, or the reason given to `Reject` |
| `score` | the current score by term: [Scheduling](../explanation/scheduling.md) |
| `rank` | the place among the jobs of its type, and among all jobs that its slots could take; 1 is next |
| `ahead` | the jobs that start first, by type and priority |
| `slots` | the slots that could take the job, the most specialised first |
| `overtaken` | jobs published after this time do not pass the job ([the bound](../explanation/scheduling.md#the-overtaking-bound)), unless a rule or a setting changes |
| `wait` | an estimate: the work ahead divided by the slots, from recent run times. Jobs of other types count in part. `unknown` without a worker or without recent durations: of jobs under 0.1 s, one in eight is timed. |

A job is `running` when its worker reports it at a heartbeat (every 5 s) or has acked it early. For two heartbeats after the worker has read
it, `explain` assumes that it runs; after that it prints `claimed`: the worker holds it, for example for a rate limit.

`--json` prints the same facts, and `celery_affinity.explain(app, task_id)` returns an object. The command takes about 10 ms with a million
pending jobs. With `affinity_priority_percentage` below 100, some claims ignore `rank`.
""",
}

COHORTS = """
## Cohorts and commands

In a fleet with several [cohorts](../how-to/cohorts.md), a command is about all of them, or about the cohort that `--cohort` names before it:
`celery -A shop affinity --cohort eu status`.

| command | without `--cohort` |
| --- | --- |
| reports and lists (`status`, `top`, `pending`, `jobs`, `dead`, `keys`, `tenants`, `recurring`, `settings`, `scale`, `pause` without arguments) | rows of all cohorts, with a column (JSON: field) `cohort`. `keys show`, `keys set` and `tenants set` print a heading for each cohort. `pending` lists by score; each cohort claims separately |
| ids (`explain`, `cancel`, `move`, `prioritise`, `dead show`) | are searched in each cohort |
| types (`pause gpu`) | are in one cohort. A job moves only among the types of its cohort; `move` to another cohort's type is refused |
| changes for all (`pause --all`, `pause --key`, filters of `cancel` and `dead replay`, `settings set`, `keys set`, `tenants set`, `check --repair`) | are made in each cohort |
| `scale gpu pdf`, `scale-in` | a row for each cohort of these types; a worker of two cohorts counts once |
"""


def page() -> str:
    text = MADE + BEFORE
    commands = list(_each(affinity, ()))
    text += table(
        ("command", "what it does"),
        ((f"[`{' '.join(names)}`](#{'-'.join(names)})", each.get_short_help_str(200)) for names, each in commands),
    )
    text += COHORTS
    groups = frozenset(names for names, each in commands if isinstance(each, click.Group))
    for names, each in commands:
        text += f"\n## {' '.join(names)}\n\n```text\n{_help(names, each)}\n```\n{outputs.of(names, groups)}{NOTES.get(names, '')}"
    return text


def _each(group: click.Group, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        if command.hidden:
            continue
        yield (*names, name), command
        if isinstance(command, click.Group):
            yield from _each(command, (*names, name))


def _help(names: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=f"celery -A shop affinity {' '.join(names)}", max_content_width=105)
    context.terminal_width = 105
    return command.get_help(context)
