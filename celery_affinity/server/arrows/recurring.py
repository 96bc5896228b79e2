"""Arrows of recurring calls: declared, due, made, suspended, stopped."""

from collections.abc import Sequence

from ...clock import SECOND_US
from ...errors import OptionError
from ...lua.library import arrow
from ...rules.encoding import decode, encode
from ...rules.new_job import NewJob
from ...rules.protocol import MOST_ALIKE
from ...rules.recurring_call import RecurringCall
from ...rules.rows import text_of
from .. import calls
from ..calls import pages
from ..replies import DueCall, Published
from .publishing import Publishing


class RecurringArrows(Publishing):
    """Keeps recurring calls, and publishes their jobs."""

    def recur(self, entries: Sequence[RecurringCall], *, app: str = "") -> list[str]:
        """Declare recurring calls: all that the app.conf of *app* has; or, for "", some at run time.

        A call that the app.conf had before, and alike, changes nothing: what changed last counts. Those that it had
        before, and has no more, are stopped, unless they were declared elsewhere since. Return the names of those that
        another app, or somebody at run time, had declared otherwise. Raises OptionError if too many match the same.
        """
        encoded, replaced, refused = encode(app), [], []
        for arguments in calls.declaring(entries):
            some_replaced, some_refused = self._run(arrow("recur"), arguments, app=encoded)
            replaced += [decode(text_of(name)) for name in some_replaced]
            refused += [decode(text_of(name)) for name in some_refused]
        if app:
            named = {encode(entry.name) for entry in entries}
            gone = sorted(self.reader.large_hash("recurring_of", encoded).keys() - named)
            for page in pages(gone):
                self._run(arrow("stop"), page, app=encoded)
        if refused:
            accepted = f"among the first {MOST_ALIKE} that match the same task, type and merge key"
            raise OptionError(f"recurring calls must be {accepted}, got also: {', '.join(map(repr, refused))}")
        return replaced

    def due(self, identity: str, *, again_s: float) -> DueCall | None:
        """Hand out a recurring call that is due, or None. If it is not made, it is handed out again after *again_s*.

        *identity*: the app of the process that asks; what it left to others (`leave_due`) comes to it after a while.
        """
        row = self._run(arrow("due"), again_us=round(again_s * SECOND_US), app=encode(identity))
        return DueCall.parse(row) if row else None

    def leave_due(self, identity: str, name: str) -> None:
        """Say that *identity* does not know the task of a recurring call: others may have it at once."""
        self._run(arrow("leave_due"), name=encode(name), app=encode(identity))

    def fire(self, name: str, due: str, job: NewJob) -> Published | None:
        """Publish the *job* of a recurring call, and set the next time. None if the call is not due any more.

        *due*: as the call was handed out; "": a person makes the call, whenever it is due, also while it is suspended.
        """
        reply = self._run(arrow("fire"), job.arguments, name=encode(name), due=due)
        return self.published([reply])[0] if reply else None

    def stop(self, name: str) -> bool:
        """Make a recurring call no more. Return whether there was one."""
        return bool(self._run(arrow("stop"), [encode(name)], app=""))

    def suspend(self, name: str, suspended: bool) -> bool:
        """Keep a recurring call, and let it never be due; or let it go on. Return whether there is one."""
        return bool(self._run(arrow("suspend"), name=encode(name), suspended=int(suspended)))
