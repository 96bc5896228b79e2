"""The reasons for which a job becomes a dead letter: metrics, filters, `explain`, arrows and the docs read them."""

from typing import NamedTuple


class Reason(NamedTuple):
    """One reason. *what_happened*: a sentence of the docs, without its end.

    *if_untold*: what is said of a letter of which no worker said more; {deliveries} stands for the number of times
    that the job came back. "": a worker always says more. *is_run*: the worker ran the job to an end, and counts it
    with the time of its slot. *is_announced*: the worker cannot tell the caller, so another process does.
    """

    what_happened: str
    if_untold: str = ""
    is_run: bool = False
    is_announced: bool = False


#: Reason, as the row of a job has it -> what it means.
REASONS: dict[str, Reason] = {
    "rejected": Reason(
        "the task, or its worker, rejected the message without requeueing it",
        "the task rejected it, and gave no reason",
    ),
    "failed": Reason(
        "the task failed for good, and `affinity_keep_failed` keeps its message",
        is_run=True,
    ),
    "max_deliveries": Reason(
        "the job was delivered `affinity_max_deliveries` times: each time its worker or its pool process died, or a "
        "hard time limit ended its run without an ack",
        "its runs ended without an ack {deliveries} times: its worker or its pool process died, or a hard time limit "
        "ended the run (affinity_max_deliveries)",
        is_announced=True,
    ),
    "max_requeues": Reason(
        "the task requeued the job (`Reject(requeue=True)`) more often than `affinity_max_requeues` allows",
        "its task requeued it more often than affinity_max_requeues allows",
        is_announced=True,
    ),
    "lost": Reason(
        "the worker died after it had acked the message at the start of the task: the task may have run in part",
        "its worker died after it had acked the message: the job may have done its work",
        is_announced=True,
    ),
    "unreadable": Reason(
        "the message cannot be read: a stock producer, or another program, wrote or damaged it",
        "nobody can read its message, or somebody deleted what was known of it",
    ),
}
