"""The scheduler's arrows in plain Python: what the Lua scripts must equal, in state and in every reply.

This is the specification to read. It does no I/O and has no clock: the time is an argument. It knows neither lanes nor
heads, nor counts by profile or by type: those are how the scripts avoid looking at everything, and
``tests/conformance/test_conformance.py`` shows after each of thousands of random steps that they come to the same.

    publish -> [scheduled] -> pending -> claim -> inbox -> start -> ack -> release
                                 ^                                    |
                                 +---------- requeue, recover --------+

Every arrow that adds a job or a slot ends with `fill`, the one place where a job meets a slot. A file here and the
file of ``lua`` that must equal it have the same name, in a room of the same name.
"""

from . import arrows
from .model import Cohort


class Reference(Cohort):
    """The scheduler of one cohort: its state, and each arrow as a method, in the order in which a job takes them."""

    # A job comes,
    publish = arrows.publish.publish
    ingest = arrows.ingest.ingest
    # gets a slot,
    claim = arrows.claim.claim
    # has been done, or comes back.
    ack = arrows.ack.ack
    release = arrows.release.release
    requeue = arrows.requeue.requeue

    # A worker comes, lives, goes,
    join = arrows.join.join
    sync = arrows.sync.sync
    count = arrows.count.count
    beat = arrows.beat.beat
    leave = arrows.leave.leave
    # or is dead.
    recover = arrows.recover.recover
    tick = arrows.tick.tick

    # A job ends without a worker, and its caller is told.
    revoke = arrows.revoke.revoke
    revoke_stamped = arrows.revoke.revoke_stamped
    callers = arrows.callers.callers
    part = arrows.part.part
    shared = arrows.shared.shared
    announce = arrows.announce.announce
    told = arrows.told.told
    leave_to_others = arrows.told.leave_to_others

    # A call recurs.
    recur = arrows.recur.recur
    due = arrows.due.due
    leave_due = arrows.leave_due.leave_due
    fire = arrows.fire.fire
    stop = arrows.stop.stop
    suspend = arrows.suspend.suspend

    # A person asks for it.
    purge = arrows.purge.purge
    move = arrows.move.move
    replay = arrows.replay.replay
    drop = arrows.drop.drop
    configure = arrows.configure.configure
    pause = arrows.pause.pause
    resume = arrows.resume.resume
