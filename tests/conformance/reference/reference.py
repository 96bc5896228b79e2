"""The scheduler's arrows in plain Python: what the Lua scripts must equal, in state and in every reply.

This is the specification to read. It does no I/O and has no clock: the time is an argument. It knows neither lanes nor
heads, nor counts by profile or by type: those are how the scripts avoid looking at everything, and
``tests/conformance/test_conformance.py`` shows after each of thousands of random steps that they come to the same.

    publish -> [scheduled] -> pending -> claim -> inbox -> start -> ack -> release
                                 ^                                    |
                                 +---------- requeue, recover --------+

Every arrow that adds a job or a slot ends with `fill`, the one place where a job meets a slot. A file here is named
after a room of ``lua`` or one of its files, and a function after its twin there; `arrows` has files by subject.
"""

from .functions import fleet, operating, publishing, recurring, telling, ticking, working
from .model import Cohort


class Reference(Cohort):
    """The scheduler of one cohort: its state, and each arrow as a method, in the order in which a job takes them."""

    # A job comes,
    publish = publishing.publish
    ingest = publishing.ingest
    # gets a slot,
    claim = publishing.claim
    # has been done, or comes back.
    ack = working.ack
    release = working.release
    requeue = working.requeue

    # A worker comes, lives, goes,
    join = fleet.join
    sync = fleet.sync
    add_metrics = fleet.add_metrics
    heartbeat = fleet.heartbeat
    leave = fleet.leave
    # or is dead.
    recover = fleet.recover
    tick = ticking.tick

    # A job ends without a worker, and its caller is told.
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

    # A person asks for it.
    purge = operating.purge
    move = operating.move
    replay = operating.replay
    drop = operating.drop
    configure = operating.configure
    pause = operating.pause
    resume = operating.resume
