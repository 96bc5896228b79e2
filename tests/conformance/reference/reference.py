"""The reference model in plain Python: the Lua scripts must equal it in state and in every reply.

Read this specification first. It does no I/O and has no clock: the time is an argument. It has neither lanes nor heads,
nor sums by profile or type, which spare the scripts from reading everything.
``tests/conformance/test_conformance.py`` shows after each of thousands of random steps that both agree.

    publish -> [scheduled] -> pending -> claim -> inbox -> start -> ack -> release
                                 ^                                    |
                                 +---------- requeue, recover --------+

Every function that adds a job or a slot ends with `fill`, the only place that matches jobs and slots. A file here has
the name of a folder of ``lua`` or of a file there, and a function has the name of its Lua counterpart; `functions` has
files by subject.
"""

from .functions import fleet, operating, publishing, recurring, telling, ticking, working
from .model import Cohort


class Reference(Cohort):
    """The scheduler of one cohort: its state, and each function as a method, in the order of a job's life."""

    # A job is published,
    publish = publishing.publish
    ingest = publishing.ingest
    # gets a slot,
    claim = publishing.claim
    # has run, or is requeued.
    ack = working.ack
    release = working.release
    requeue = working.requeue

    # A worker joins, lives, leaves,
    join = fleet.join
    sync = fleet.sync
    add_metrics = fleet.add_metrics
    heartbeat = fleet.heartbeat
    leave = fleet.leave
    # or is dead.
    recover = fleet.recover
    tick = ticking.tick

    # A job ends without a worker, and its caller gets a report.
    revoke = operating.revoke
    revoke_stamped = operating.revoke_stamped
    batch_calls = telling.batch_calls
    split_batch = telling.split_batch
    ack_batch_reports = telling.ack_batch_reports
    next_report = telling.next_report
    ack_report = telling.ack_report
    leave_to_others = telling.leave_to_others

    # A call recurs.
    declare_recurring = recurring.declare_recurring
    due_recurring = recurring.due_recurring
    decline_recurring = recurring.decline_recurring
    fire_recurring = recurring.fire_recurring
    remove_recurring = recurring.remove_recurring
    pause_recurring = recurring.pause_recurring

    # Operators' functions.
    purge = operating.purge
    move = operating.move
    replay = operating.replay
    drop = operating.drop
    configure = operating.configure
    pause = operating.pause
    resume = operating.resume
