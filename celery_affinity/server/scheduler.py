"""The scheduler: all arrows, which `arrows` has by what they are for. How an arrow is run is in `running`.

Every call may be repeated after a lost reply: publishing a known id, a stale fencing number and a repeated sequence
number change nothing.
"""

from .arrows.dispatching import Dispatching
from .arrows.operating import Operating
from .arrows.publishing import Publishing
from .arrows.recurring import RecurringArrows
from .arrows.working import Working


class Scheduler(Working, Dispatching, RecurringArrows, Publishing, Operating):
    """The scheduler of one cohort, reached by *client*. `Runner` has the demands on a client, and the errors."""

    def close(self) -> None:
        """Close the connections that no thread is using; one that is in use goes with its last user."""
        self.client.close()
        self.client.connection_pool.disconnect(inuse_connections=False)
